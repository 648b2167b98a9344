"""python -m kvatlas.bake: bakes priors for a cartridge, puts them, and sweeps K and policies."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from pathlib import Path

ALGORITHM_NAMES = ("kri-d-kv-sum", "kri-a", "kri-g")
POLICIES = ("top-k", "A1R2", "segment-quota:1,2,4", "random-middle:1,2,0", "recency")

DESCRIPTION = """\
Bakes priors for a cartridge (a long prefix, in blocks of tokens) with any causal language model of
transformers whose layers attend to every token: runs the prefix through the model once, scores
every block, writes a `.pt` file for each algorithm, puts it to a kvatlas server, asks the server
for manifests at every K and policy, and prints them with what each one costs.
"""
EPILOG = """\
algorithms:
  kri-d-kv-sum  how far the hidden states after the prefix move when the block is left out
                (one short run a block, in batches)
  kri-a         how much attention the block gets while the prefix is prefilled (one prefill)
  kri-g         how steeply the loss after the prefix depends on the block's mean key (one backward)

The column "KL to dense" is the mean divergence, in nats, of what the model says after the judges'
texts when it reads only the manifest's blocks, from what it says when it reads all: less is better.

example, with a server on 127.0.0.1:50051 and a folder with a model and its tokenizer:
  python -m kvatlas.bake --model ./model --text prefix.txt --prefix-hash cartridge-1 --k 4 8 16
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit status."""
    options = parser().parse_args(arguments)
    try:
        # Imports torch, which --help and a wrong command shall not wait for.
        importlib.import_module("kvatlas.bake.run").bake(options)
    except (OSError, ValueError, ImportError) as error:
        print(f"kvatlas.bake: {error}", file=sys.stderr)
        return 1
    return 0


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(
        prog="python -m kvatlas.bake",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("--model", required=True, help="folder or name of the model")
    prefix = made.add_mutually_exclusive_group(required=True)
    prefix.add_argument("--text", type=Path, metavar="FILE", help="the prefix, as text")
    prefix.add_argument(
        "--tokens", type=Path, metavar="FILE", help="the prefix, as a JSON list of token ids"
    )
    made.add_argument("--prefix-hash", required=True, help="the cartridge's name on the server")
    made.add_argument("--block-size", type=count, default=16, help="tokens a block (16)")
    made.add_argument(
        "--algorithms",
        nargs="+",
        choices=ALGORITHM_NAMES,
        default=list(ALGORITHM_NAMES),
        help="which (all)",
    )
    made.add_argument(
        "--probe",
        action="append",
        metavar="TEXT",
        help="what follows the prefix when blocks are scored; again for more (two general ones)",
    )
    made.add_argument(
        "--judge",
        action="append",
        metavar="TEXT",
        help="what follows it when manifests are measured; again for more (a general question)",
    )
    made.add_argument(
        "--k", nargs="+", type=count, default=[4, 8, 16], help="block counts (4 8 16)"
    )
    made.add_argument(
        "--policies",
        nargs="+",
        default=list(POLICIES),
        help=f"A1R2 takes the rest of K for the middle ({' '.join(POLICIES)})",
    )
    made.add_argument("--out", type=Path, default=Path(), help="folder of the .pt files (here)")
    made.add_argument("--address", help="the server (KVATLAS_ADDRESS, else 127.0.0.1:50051)")
    made.add_argument("--no-put", action="store_true", help="only write the files")
    made.add_argument("--device", default="cpu", help="cpu, cuda, ... (cpu)")
    made.add_argument(
        "--dtype", default="", help="by torch's name (float32 on a CPU, else bfloat16)"
    )
    made.add_argument(
        "--repair",
        type=repair,
        metavar="NAME:RATIO",
        help="what engines shall recompute after injection, such as xa25:0.25",
    )
    made.add_argument("--batch", type=int, default=0, help="blocks left out at a time (as fit)")
    return made


def count(told: str) -> int:
    """At least 1. ValueError, for argparse to tell."""
    number = int(told)
    if number < 1:
        raise ValueError
    return number


def repair(told: str) -> tuple[str, float]:
    """A name and a share. ValueError, for argparse to tell."""
    name, _, ratio = told.rpartition(":")
    return name, float(ratio)


if __name__ == "__main__":
    sys.exit(main())
