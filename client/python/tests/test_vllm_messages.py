"""What several workers say, as one."""

from __future__ import annotations

import fake_vllm  # noqa: F401

from kvatlas.vllm.messages import LoadResult, SaveResult, WorkerReport

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
