"""python -m kvatlas.bake: bakes priors for a cartridge, puts them, and sweeps K and policies."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import torch

    from kvatlas.bake.cartridge import Cartridge

ALGORITHM_NAMES = ("kri-d-kv-sum", "kri-a", "kri-g")
POLICIES = ("top-k", "A1R2", "segment-quota:1,2,4", "random-middle:1,2,0", "recency")
PROBES = ("\n\nIn short, the text above says that", "\n\nThe most important fact in it is that")
JUDGES = ("\n\nQuestion: What does the text report?\nAnswer: It reports that",)

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
        bake(options)
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
    made.add_argument("--block-size", type=int, default=16, help="tokens a block (16)")
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
    made.add_argument("--k", nargs="+", type=int, default=[4, 8, 16], help="block counts (4 8 16)")
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
    made.add_argument("--batch", type=int, default=0, help="blocks left out at a time (as fit)")
    return made


def bake(options: argparse.Namespace) -> None:
    """Everything, in order."""
    # Only here, so that --help needs neither.
    import torch

    from kvatlas.bake.cartridge import prefill
    from kvatlas.bake.scores import ALGORITHMS, schema

    model, tokenizer = load(options)
    tokens = read_prefix(options, tokenizer)
    if len(tokens) < 2 * options.block_size:
        raise ValueError(f"the prefix has {len(tokens)} tokens, less than two blocks")
    probes = encode(tokenizer, options.probe or PROBES)
    cartridge = with_bar(
        "prefill", len(tokens), lambda tell: prefill(model, tokens, options.block_size, tell)
    )
    print(f"{cartridge.length} tokens, {cartridge.blocks} blocks, {cartridge.layers} layers")
    options.out.mkdir(parents=True, exist_ok=True)
    files = {}
    for name in options.algorithms:
        algorithm = ALGORITHMS[name]
        more = {"batch": options.batch} if name == "kri-d-kv-sum" else {}
        scores = with_bar(
            name,
            algorithm.steps(cartridge, probes),
            lambda tell, score=algorithm.score, more=more: score(cartridge, probes, tell, **more),
        )
        files[name] = options.out / file_name(options.prefix_hash, name)
        torch.save(schema(cartridge, name, scores, options.model), files[name])
        print(f"wrote {files[name]}")
    if not options.no_put:
        put_and_sweep(options, cartridge, files, encode(tokenizer, options.judge or JUDGES))


def put_and_sweep(
    options: argparse.Namespace,
    cartridge: Cartridge,
    files: dict[str, Path],
    judges: list[torch.Tensor],
) -> None:
    """Puts the priors and prints the table."""
    from kvatlas import Client, KvatlasError
    from kvatlas.bake.sweep import ask, measure, table

    with Client(options.address) as client:
        for name, path in files.items():
            try:
                stored = client.put_prior(path, options.prefix_hash, algorithm=name)
            except KvatlasError as error:
                raise ValueError(f"{path} was not put: {error}") from None
            print(f"put {name}, generation {stored.generation}")
        lines = ask(
            client, cartridge, options.prefix_hash, list(files), options.k, options.policies
        )
    different = len({line.blocks for line in lines if line.blocks is not None})
    measured = with_bar(
        "sweep", different * len(judges), lambda tell: measure(cartridge, judges, lines, tell)
    )
    print(table(measured, cartridge.blocks))


def file_name(prefix_hash: str, algorithm: str) -> str:
    """A prefix's name may be anything; a file's may not."""
    return re.sub(r"[^\w.-]", "_", f"{prefix_hash}_{algorithm.replace('-', '_')}.pt")


def load(options: argparse.Namespace) -> tuple[Any, Any]:
    """The model and its tokenizer."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    dtype = options.dtype or ("float32" if options.device == "cpu" else "bfloat16")
    if not isinstance(getattr(torch, dtype, None), torch.dtype):
        raise ValueError(f"--dtype {dtype} is none of torch's")
    # "eager" is the one implementation that tells its attention.
    model = AutoModelForCausalLM.from_pretrained(options.model, attn_implementation="eager")
    model = model.eval().requires_grad_(False).to(options.device, getattr(torch, dtype))
    return model, AutoTokenizer.from_pretrained(options.model)


def read_prefix(options: argparse.Namespace, tokenizer: Any) -> torch.Tensor:
    """The cartridge's tokens."""
    import torch

    if options.tokens is not None:
        ids = json.loads(options.tokens.read_text())
        if not (isinstance(ids, list) and all(type(i) is int and i >= 0 for i in ids)):
            raise ValueError(f"{options.tokens} is no JSON list of token ids")
    else:
        ids = tokenizer(options.text.read_text())["input_ids"]
    return torch.tensor(ids, dtype=torch.long)


def encode(tokenizer: Any, texts: Sequence[str]) -> list[torch.Tensor]:
    """Texts that follow the prefix, so without a token that begins one."""
    import torch

    encoded = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
    if any(len(ids) < 2 for ids in encoded):
        raise ValueError("a probe and a judge each have at least two tokens")
    return [torch.tensor(ids, dtype=torch.long) for ids in encoded]


_Result = TypeVar("_Result")


def with_bar(name: str, steps: int, work: Callable[[Callable[[int], object]], _Result]) -> _Result:
    """Does the work behind a progress bar."""
    # transformers needs it anyway.
    from tqdm import tqdm

    with tqdm(total=steps, desc=name.ljust(12), file=sys.stderr) as bar:
        return work(bar.update)


if __name__ == "__main__":
    sys.exit(main())
