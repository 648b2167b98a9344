"""What several workers say, as one, and what is logged of a plan."""

from __future__ import annotations

from typing import Any

import fake_vllm  # noqa: F401
import numpy as np
import pytest

from kvatlas.vllm.messages import Load, LoadResult, Save, SaveResult, StepPlan, WorkerReport

FILLED = LoadResult(1, "", "", donor_lost=False)
LATE = LoadResult(1, "load_failed", "late", donor_lost=False)
GONE = LoadResult(1, "load_failed", "missing", donor_lost=True)


def test_a_load_counts_only_where_every_worker_has_filled_its_blocks() -> None:
    for one, other, reason, lost in (
        (FILLED, FILLED, "", False),
        (FILLED, LATE, "load_failed", False),
        (LATE, FILLED, "load_failed", False),
        (LATE, GONE, "load_failed", True),
        (GONE, FILLED, "load_failed", True),
    ):
        merged = one.merged(other)
        assert (merged.workers, merged.reason, merged.donor_lost) == (2, reason, lost)


def test_reports_of_a_step_are_put_together() -> None:
    one = WorkerReport({"a": FILLED}, {"d": SaveResult(1, 1, "")}, {"x"})
    other = WorkerReport(
        {"a": LATE, "b": FILLED}, {"d": SaveResult(1, 0, "full"), "e": SaveResult(1, 1, "")}, {"y"}
    )
    both = one.aggregate(other)
    assert both.loads == {"a": FILLED.merged(LATE), "b": FILLED}
    assert both.saves == {"d": SaveResult(2, 1, "full"), "e": SaveResult(1, 1, "")}
    assert both.evicted == {"x", "y"}
    assert not WorkerReport()
    assert both


TOKENS = np.full(640, 424_242, np.uint32)
LOAD = Load("r", "d", b"secret-lease", "h", (1, 2), 0, TOKENS, 0, "digest")
SAVE = Save("r", "d", (1, 2), TOKENS, "digest")


@pytest.mark.parametrize("planned", [StepPlan([LOAD], [SAVE]), LOAD, SAVE])
def test_a_failing_steps_log_holds_neither_tokens_nor_leases(planned: Any) -> None:
    for told in (dumped({"plan": planned}), repr(planned)):
        assert "4242" not in told
        assert "secret" not in told
    assert "loads=1, saves=1, drops=0" in dumped(StepPlan([LOAD], [SAVE]))


def dumped(thing: Any) -> str:
    """As vLLM dumps the input of a step that has failed."""
    if isinstance(thing, dict):
        return str({f"{name}: {dumped(value)}" for name, value in thing.items()})
    if isinstance(thing, (list, set, tuple)):
        return str([dumped(value) for value in thing])
    if hasattr(thing, "anon_repr"):
        return str(thing.anon_repr())
    if hasattr(thing, "__dict__"):
        return f"{type(thing).__name__}({dumped(thing.__dict__)})"
    return repr(thing)
