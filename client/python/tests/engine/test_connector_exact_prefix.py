"""exact_prefix in a real vLLM: a repeated prompt is loaded, and says what it said before."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import pytest
from connector_story import Played, Step, Stories, again, ask, prompts
from harness import Engine

CHUNKED = {"enable_chunked_prefill": True, "max_num_batched_tokens": 256}
WHOLE = {"enable_chunked_prefill": False, "max_num_batched_tokens": 4096}
# The connector's own, short enough to wait for its end.
LEASE_TTL_S = 5.0


@pytest.fixture
def stories(engine: Engine, model: Path, tmp_path: Path) -> Stories:
    return Stories(engine, model, tmp_path)


@pytest.mark.parametrize("llm", [WHOLE, CHUNKED], ids=["whole", "chunked"])
def test_repeated_prompts_are_loaded(stories: Stories, llm: dict[str, Any]) -> None:
    asked = prompts(20, seed=1)
    expected = stories.cold(asked, **llm)
    steps = [ask(asked, "first"), *again(len(asked)), ask(asked, "again"), *again()]
    played = stories.play(steps, **llm)
    assert played.outputs("first") == expected
    assert played.outputs("again") == expected
    first_s, again_s = _first_token_s(played, "first"), _first_token_s(played, "again")
    print(f"computed {played.computed('first')} -> {played.computed('again')} tokens, ", end="")
    print(f"first token of the longer half {first_s:.4f} -> {again_s:.4f} s (median)")
    reports = played.lines("again", "reuse")
    assert [line["provenance"] for line in reports] == ["exact_external_hit"] * len(asked)
    assert played.computed("again") <= 0.2 * played.computed("first")
    assert again_s < first_s
    assert played.left["leases"] == 0


# What happens to donors or service once donors are there, and the reason that is recorded.
FAULTS: dict[str, tuple[Step, str]] = {
    "deleted": ({"do": "damage", "how": "delete"}, "load_failed"),
    "truncated": ({"do": "damage", "how": "truncate"}, "load_failed"),
    "bit flipped": ({"do": "damage", "how": "flip"}, "load_failed"),
    "lease expired": (
        {"do": "before_load", "how": "wait", "seconds": LEASE_TTL_S + 0.2},
        "donor_stale",
    ),
    "killed before the load": ({"do": "before_load", "how": "kill"}, "donor_stale"),
    "killed": ({"do": "kill"}, "provider_error"),
    "late by 2 s": ({"do": "slow", "seconds": 2.0}, "provider_timeout"),
}


def test_what_fails_is_computed(stories: Stories) -> None:
    asked = {fault: prompts(2, seed, shortest=700) for seed, fault in enumerate(FAULTS, 10)}
    expected = stories.cold([prompt for two in asked.values() for prompt in two])
    steps: list[Step] = []
    for fault, (step, _) in FAULTS.items():
        happens = {**step, "folder": str(stories.donors)} if step["do"] == "damage" else step
        steps += [ask(asked[fault], f"{fault}: cold"), {"do": "settle", "donors": 2}]
        steps += [{"do": "reset"}, happens, ask(asked[fault], fault)]
        steps += [{"do": "before_load", "how": "nothing"}, {"do": "slow", "seconds": 0}]
        steps += [{"do": "start"}, *again(), ask(asked[fault], f"{fault}: after"), *again()]
    played = stories.play(steps, lease_ttl_ms=int(LEASE_TTL_S * 1000))
    wrong = []
    for number, (fault, (_, reason)) in enumerate(FAULTS.items()):
        lines = played.lines(fault, "reuse") + played.lines(fault, "declined")
        reasons = [line["reason"] for line in lines]
        print(f"{fault}: {reasons}")
        for chapter in (f"{fault}: cold", fault, f"{fault}: after"):
            if played.outputs(chapter) != expected[2 * number : 2 * number + 2]:
                wrong.append(f"{chapter}: another output")
        if reason not in reasons:
            wrong.append(f"{fault}: {reason} is not recorded")
    assert wrong == []
    assert played.left["leases"] == 0


def _first_token_s(played: Played, chapter: str) -> float:
    results = played.chapters[chapter]
    return statistics.median(one["first_token_s"] for one in results[len(results) // 2 :])
