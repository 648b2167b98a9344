"""The classes of `kvatlas-loadtest quality`, asked of two libraries and of kvatlas in one run.

    python3 loadtest/compare/run.py --loadtest target/release/kvatlas-loadtest --out DIR

It makes a virtual environment (kept with --venv), installs lmcache 0.5.6 and semblend 0.3.25 into
it, lets the load test write its donors and look-ups, and asks each library in-process, one look-up
at a time. Where a choice had to be made, it favours the library:

- SemBlend's embedder is a constant, so every donor has cosine 1.0 and no text is embedded; what is
  left is its own gates on tokens and its alignment. Times are without the embedding.
- BlendIndex gets its own chunks of 256 tokens, cut from each donor's start, and names no single
  donor: an answer counts as right when any donor that holds one of the matched chunks is as good
  as the best. It counts as found from the first chunk on.
- lmcache imports torch, which its BlendIndex never calls; an empty stand-in takes its place.

Only the times of kvatlas include a queue, a decoded request and gates; they are the server's own.
"""

import argparse
import importlib.abc
import importlib.machinery
import json
import subprocess
import sys
import time
import venv
from pathlib import Path
from unittest.mock import MagicMock

SEMBLEND = ["semblend==0.3.25"]
LMCACHE = ["lmcache==0.5.6"]
# What BlendIndex imports of lmcache's dependencies.
LMCACHE_NEEDS = ["numba", "sortedcontainers", "msgspec", "prometheus_client<=0.24.1", "pyyaml", "psutil", "pydantic"]
RUN_TOKENS = 16
RIGHT_SHARE = 0.98
CHUNK_TOKENS = 256
# No library is asked for longer; what it was not asked by then is missing from `asked`.
LIBRARY_SECONDS_MAX = 600


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--loadtest", default="target/release/kvatlas-loadtest")
    parser.add_argument("--out", type=Path, required=True, help="folder for prompts and results")
    parser.add_argument("--venv", type=Path, help="kept there for the next time")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--queries", type=int, default=20, help="look-ups of each class")
    parser.add_argument("--semblend-queries", type=int, default=5, help="of each class; one takes up to a second")
    parser.add_argument("--passages", help="as the load test's")
    parser.add_argument("--inside", nargs=2, metavar=("LIBRARY", "FOLDER"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.inside:
        ask(args.inside[0], Path(args.inside[1]), args)
        return
    args.out.mkdir(parents=True, exist_ok=True)
    python = install(args.venv or args.out / "venv")
    rows = {}
    for donors, libraries in [(1000, ["lmcache", "semblend"]), (10_000, ["lmcache"])]:
        folder = args.out / str(donors)
        rows[donors] = {"kvatlas": ours(args, donors, folder)}
        for library in libraries:
            command = [python, __file__, *sys.argv[1:], "--inside", library, folder]
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
            rows[donors][library] = json.loads(done.stdout.splitlines()[-1])
    (args.out / "compare.json").write_text(json.dumps(rows, indent=1) + "\n")
    table = "\n".join(markdown(donors, by_library) for donors, by_library in rows.items())
    (args.out / "compare.md").write_text(table)
    print(table)


def install(folder):
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, with_pip=True)
    pip = [python, "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    subprocess.run([*pip, *SEMBLEND, *LMCACHE_NEEDS], check=True)
    subprocess.run([*pip, "--no-deps", *LMCACHE], check=True)
    return python


def ours(args, donors, folder):
    command = [args.loadtest, "quality", "--json", "--dump", folder, "--donors", donors]
    command += ["--tokens", args.tokens, "--queries", args.queries, "--seed", args.seed]
    if args.passages:
        command += ["--passages", args.passages]
    done = subprocess.run([str(word) for word in command], check=True, stdout=subprocess.PIPE)
    classes = json.loads(done.stdout)["classes"]
    return {name: report for name, report in classes.items() if report["asked"]}


def ask(library, folder, args):
    """Runs inside the virtual environment; prints one line of JSON."""
    import numpy as np

    donors = [json.loads(line) for line in open(folder / "donors.jsonl", encoding="utf-8")]
    targets = [json.loads(line) for line in open(folder / "targets.jsonl", encoding="utf-8")]
    by_class = {}
    for target in targets:
        by_class.setdefault(target["class"], []).append(target)
    at_most = args.semblend_queries if library == "semblend" else args.queries
    peer = {"lmcache": Lmcache, "semblend": Semblend}[library](donors)
    warm_up = targets[0]
    peer.find(warm_up["tokens"], warm_up["namespace"])
    until = time.monotonic() + LIBRARY_SECONDS_MAX
    result = {}
    # In turn, so that a library that runs out of time was asked of every class.
    order = [(name, at) for at in range(at_most) for name in by_class if at < len(by_class[name])]
    for name, at in order:
        if time.monotonic() > until:
            break
        target = by_class[name][at]
        began = time.perf_counter()
        answer = peer.find(target["tokens"], target["namespace"])
        took = (time.perf_counter() - began) * 1e6
        tally = result.setdefault(name, {"found": 0, "right": 0, "reported": 0, "best": 0, "us": []})
        named, reported = peer.judge(answer)
        tally["us"].append(took)
        tally["found"] += bool(named)
        tally["best"] += target["best"]
        if target["best"]:
            tally["reported"] += min(reported, target["best"])
            windows = positions(target["tokens"])
            covered = max((coverage(windows, target["tokens"], donor) for donor in named), default=0)
            tally["right"] += bool(named) and covered >= RIGHT_SHARE * target["best"]
        else:
            tally["right"] += not named
    print(json.dumps({name: summary(tally, np) for name, tally in result.items()}))


def summary(tally, np):
    return {
        "asked": len(tally["us"]),
        "found": tally["found"],
        "right": tally["right"],
        "coverage": tally["reported"] / tally["best"] if tally["best"] else None,
        "p50_us": round(float(np.percentile(tally["us"], 50)), 1),
        "p99_us": round(float(np.percentile(tally["us"], 99)), 1),
    }


def positions(target):
    """Where each window of the target stands."""
    found = {}
    for at in range(len(target) - RUN_TOKENS + 1):
        found.setdefault(tuple(target[at : at + RUN_TOKENS]), []).append(at)
    return found


def coverage(windows, target, donor):
    """Tokens of the target in runs of 16 or more that the donor has too, as kvatlas is judged."""
    covered = bytearray(len(target))
    for at in range(len(donor) - RUN_TOKENS + 1):
        for place in windows.get(tuple(donor[at : at + RUN_TOKENS]), ()):
            covered[place : place + RUN_TOKENS] = b"\1" * RUN_TOKENS
    return sum(covered)


class Lmcache:
    """BlendIndex, filled with the donors' chunks."""

    # Holders of one chunk that are compared with the best donor.
    HOLDERS_MAX = 64

    def __init__(self, donors):
        import lmcache  # noqa: F401  (before the stand-in: it looks for devices)
        import numpy as np

        sys.meta_path.insert(0, NoTorch())
        from lmcache.v1.mp_coordinator.api import BlendNamespace
        from lmcache.v1.mp_coordinator.blend_index import BlendIndex

        self.np = np
        self.namespace = lambda number: BlendNamespace(
            model_name=str(number), cache_salt="", world_size=1
        )
        self.index = BlendIndex(chunk_size=CHUNK_TOKENS)
        self.holders = {}
        for donor in donors:
            tokens = np.asarray(donor["tokens"], dtype=np.uint64)
            namespace = self.namespace(donor["namespace"])
            for start in range(0, len(tokens) - CHUNK_TOKENS + 1, CHUNK_TOKENS):
                chunk = tokens[start : start + CHUNK_TOKENS].copy()
                name = chunk.tobytes()
                self.holders.setdefault(name, []).append(donor["tokens"])
                self.index.add(chunk, name, start, namespace)

    def find(self, tokens, namespace):
        return self.index.match(self.np.asarray(tokens, dtype=self.np.uint64), self.namespace(namespace))

    def judge(self, matches):
        covered = set()
        named = []
        for match in matches:
            covered.update(range(match.cur_st, match.cur_st + CHUNK_TOKENS))
            named += self.holders[match.chunk_hash][: self.HOLDERS_MAX]
        return named, len(covered)


class Semblend:
    """The whole pipeline, with an embedder that finds every text alike."""

    def __init__(self, donors):
        import numpy as np
        from semblend_core.pipeline import SemBlendPipeline

        class Constant:
            available = True
            dimension = 384
            vector = np.full(384, 384**-0.5, dtype=np.float32)

            def embed(self, text):
                return self.vector

        self.pipeline = SemBlendPipeline(
            max_donors=len(donors), embedder_type="jaccard", chunk_size=16, enable_pq_segments=False
        )
        self.pipeline._embedder = Constant()
        self.tokens = {donor["id"]: donor["tokens"] for donor in donors}
        for donor in donors:
            self.pipeline.register_donor(
                donor["id"], donor["tokens"], "text", extra_key=str(donor["namespace"])
            )

    def find(self, tokens, namespace):
        return self.pipeline.find_donor(tokens, "text", extra_key=str(namespace))

    def judge(self, answer):
        if not answer.found:
            return [], 0
        ids = answer.donor_ids or [answer.donor_id]
        mapped = len(set(answer.position_map.target_positions))
        if not mapped and answer.multi_donor_position_map is not None:
            mapped = len(set(answer.multi_donor_position_map.target_positions))
        return [self.tokens[name] for name in ids if name in self.tokens], mapped


class NoTorch(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """An empty module wherever torch is imported."""

    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] != "torch":
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        module = MagicMock(name=spec.name)
        module.__spec__, module.__path__, module.__name__ = spec, [], spec.name
        return module

    def exec_module(self, module):
        pass


def markdown(donors, by_library):
    def cell(report):
        if not report:
            return "-"
        coverage = report["coverage"]
        share = "" if coverage is None else f", {coverage:.3f}"
        counts = f"{report['found']}/{report['right']} of {report['asked']}{share}"
        return f"{counts}, {report['p50_us']:.0f} / {report['p99_us']:.0f} us"

    names = list(by_library)
    lines = [
        f"{donors} donors: found/right of asked, coverage, p50 / p99",
        "",
        "| class | " + " | ".join(names) + " |",
        "|---" * (len(names) + 1) + "|",
    ]
    for name in by_library["kvatlas"]:
        cells = [cell(by_library[library].get(name)) for library in names]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
