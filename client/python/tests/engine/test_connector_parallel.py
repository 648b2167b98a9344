"""exact_prefix over two tensor parallel workers in a real vLLM: each keeps its share of a block."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import pytest
from connector_story import Stories, again, ask, prompts
from harness import Engine

WORKERS = 2
PROMPTS = 6
# vLLM's workers on a CPU each want processors of their own.
PROCESSORS = "|".join(map(str, range(WORKERS)))


@pytest.fixture
def stories(engine: Engine, model: Path, tmp_path: Path) -> Stories:
    if (os.cpu_count() or 1) < WORKERS:
        pytest.skip("each worker needs a processor")
    environment = {"VLLM_CPU_OMP_THREADS_BIND": PROCESSORS}
    return Stories(dataclasses.replace(engine, environment=environment), model, tmp_path)


def test_each_worker_loads_its_share(stories: Stories) -> None:
    asked = prompts(PROMPTS, seed=60)
    llm = {"tensor_parallel_size": WORKERS, "distributed_executor_backend": "mp"}
    expected = stories.cold(asked, **llm)
    folder = str(stories.donors)
    steps = [
        ask(asked, "first"),
        *again(len(asked)),
        ask(asked, "second"),
        *again(len(asked)),
        # Of the share of one worker alone nothing may be loaded.
        {"do": "damage", "how": "delete", "folder": folder, "worker": f"0-of-{WORKERS}"},
        ask(asked, "one share gone"),
        *again(),
    ]
    played = stories.play(steps, **llm)
    for chapter in ("first", "second", "one share gone"):
        assert played.outputs(chapter) == expected, chapter
    loads = [line["provenance"] for line in played.lines("second", "reuse")]
    assert loads == ["exact_external_hit"] * PROMPTS
    assert played.computed("second") <= 0.2 * played.computed("first")
    failed = played.lines("one share gone", "reuse")
    ends = [(line["provenance"], line["reason"]) for line in failed]
    assert ends == [("fallback_recompute", "load_failed")] * PROMPTS
    assert played.left["leases"] == 0
