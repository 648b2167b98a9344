"""request_only in a real vLLM: verified KV serves one request, and nobody after it."""

from __future__ import annotations

from pathlib import Path

import pytest
from connector_story import Step, Stories, again, ask, prompts
from harness import Engine


@pytest.fixture
def stories(engine: Engine, model: Path, tmp_path: Path) -> Stories:
    return Stories(engine, model, tmp_path)


def test_a_borrowed_prefix_serves_one_request_only(stories: Stories) -> None:
    documents = prompts(4, seed=50, shortest=800, longest=1600)
    heads = prompts(4, seed=51, shortest=17, longest=60)
    question = prompts(1, seed=52, shortest=20)[0]
    donors = [head + document for head, document in zip(heads, documents, strict=True)]
    borrowers = [document + question for document in documents]
    llm = {"enable_prefix_caching": False}
    expected = stories.cold(donors + borrowers, **llm)
    settled: Step = {"do": "settle", "donors": 4}
    steps = [
        ask(donors, "donors"),
        settled,
        ask(borrowers, "borrowers"),
        again()[0],
        ask(donors, "donors again"),
        again()[0],
    ]
    played = stories.play(steps, extra={"mode": "request_only"}, **llm)
    assert played.outputs("donors") == expected[:4]
    reports = played.lines("borrowers", "reuse")
    assert [line["provenance"] for line in reports] == ["request_only_reuse"] * 4
    assert played.computed("borrowers") <= 0.2 * sum(len(prompt) for prompt in borrowers)
    alike = sum(
        one[0] == other[0]
        for one, other in zip(played.outputs("borrowers"), expected[4:], strict=True)
    )
    print(f"borrowers: first token as cold in {alike} of 4")
    # What was borrowed approximately is nobody's donor.
    captured = [line["request_id"] for line in played.lines("borrowers", "capture")]
    assert captured == []
    assert played.outputs("donors again") == expected[:4]
    assert played.left["leases"] == 0


def test_moved_keys_are_those_of_their_new_place(stories: Stories) -> None:
    steps: list[Step] = []
    for number, length in enumerate((1, 19, 250)):
        (document,) = prompts(1, seed=70 + number, shortest=700)
        head = prompts(1, seed=80 + number, shortest=length)[0]
        steps += [ask([document, head + document], "both")]
        steps += [{"do": "settle", "donors": 2 * (number + 1)}]
        moved = {"do": "move", "folder": str(stories.donors), "head": head, "tokens": 640}
        steps += [moved]
    played = stories.play(steps, extra={"mode": "request_only"}, enable_prefix_caching=False)
    assert len(played.moved) == 3
    for difference, largest in played.moved:
        print(f"moved: largest difference {difference:.4f} of {largest:.2f}")
        # Of two roundings to eight bits.
        assert difference <= largest / 64


def test_exact_requests_after_it_are_as_cold(stories: Stories) -> None:
    """One folder, first used by an engine in request_only, then by one in exact_prefix."""
    documents = prompts(3, seed=60, shortest=800, longest=1200)
    donors = [[7] * 21 + document for document in documents]
    expected = stories.cold(donors + documents)
    steps = [ask(donors, "d"), {"do": "settle", "donors": 3}, ask(documents, "b"), again()[0]]
    stories.play(steps, extra={"mode": "request_only"}, enable_prefix_caching=False)
    steps = [ask(donors + documents, "after"), *again(6), ask(donors + documents, "again")]
    played = stories.play(steps)
    assert played.outputs("after") == expected
    assert played.outputs("again") == expected
