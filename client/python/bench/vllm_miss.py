"""What a look-up that finds nothing costs vLLM's scheduler thread: vllm_miss.py ADDRESS

Every call that the connector gets on that thread is timed, for prompts of 8,192 unseen tokens, in
the fake engine of the tests, which computes nothing here but pauses where a model would run.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

import numpy as np
from fake_engine import FakeEngine, Request
from rig import Rig

TOKENS = 8192
REQUESTS = 400
WARM_UP = 50
# A step of a fast engine.
STEP_S = 0.002
CALLS = (
    "on_new_request",
    "get_num_new_matched_tokens",
    "update_state_after_alloc",
    "build_connector_meta",
    "update_connector_output",
    "request_finished_all_groups",
)


class PausingEngine(FakeEngine):
    """Its model takes its time, and says anything; a step without the model takes some, too."""

    def step(self) -> None:
        time.sleep(STEP_S / 2)
        super().step()

    def _forward(self, request: Request, first: int, end: int) -> int:
        request.computed += end - first
        time.sleep(STEP_S / 2)
        return 0


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        for mode in ("discovery_only", "exact_prefix"):
            (Path(folder) / mode).mkdir()
            measure(mode, Rig(Path(folder) / mode, sys.argv[1]))


def measure(mode: str, rig: Rig) -> None:
    # Nothing becomes a donor: what is measured is a miss.
    extra = {"lookup_timeout_ms": 100, "min_reuse_tokens": 2**20, "kv_store": "memory"}
    config = rig.config(mode, extra)
    engine = PausingEngine(config, blocks=2 * TOKENS // 16, batch_tokens=2 * TOKENS)
    taken: list[tuple[str, float]] = []
    for name in CALLS:
        setattr(engine.scheduler, name, timed(name, getattr(engine.scheduler, name), taken))
    chance = np.random.default_rng(time.time_ns())
    by_request = []
    for number in range(WARM_UP + REQUESTS):
        prompt = chance.integers(3, 30_000, TOKENS).tolist()
        engine.pool.reset()
        taken.clear()
        engine.run(Request(f"{mode}-{number}", prompt, max_tokens=1))
        if number >= WARM_UP:
            by_request.append(list(taken))
    engine.close()
    reasons = {line["reason"] for line in rig.audit("lookup")}
    rig.close()
    print(f"{mode}: {REQUESTS} misses of {TOKENS} tokens, reasons {sorted(reasons)}")
    for name in CALLS:
        tell(name, [sum(us for one, us in calls if one == name) for calls in by_request])
    tell("all of a request", [sum(us for _, us in calls) for calls in by_request])


def timed(name: str, call: Callable[..., Any], taken: list[tuple[str, float]]) -> Any:
    def run(*arguments: Any) -> Any:
        begun = time.perf_counter()
        answer = call(*arguments)
        taken.append((name, (time.perf_counter() - begun) * 1e6))
        return answer

    return run


def tell(name: str, values: list[float]) -> None:
    ordered = sorted(values)
    p99 = ordered[int(0.99 * (len(ordered) - 1))]
    print(f"  {name}: p50 {statistics.median(ordered):.0f} us, p99 {p99:.0f} us")


if __name__ == "__main__":
    main()
