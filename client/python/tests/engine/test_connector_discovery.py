"""discovery_only in a real vLLM: what could be borrowed is seen, and nothing is touched."""

from __future__ import annotations

from pathlib import Path

from connector_story import Stories, ask, prompts
from harness import Engine

DOCUMENT_TOKENS = 1500


def test_one_document_under_two_instructions(engine: Engine, model: Path, tmp_path: Path) -> None:
    stories = Stories(engine, model, tmp_path)
    (document,) = prompts(1, seed=40, shortest=DOCUMENT_TOKENS)
    one, two, question = prompts(3, seed=41, shortest=20, longest=40)
    asked = [one + document + question, two + document + question]
    expected = stories.cold(asked)
    steps = [
        ask(asked[:1], "one"),
        {"do": "settle", "donors": 1},
        ask(asked[1:], "two"),
        {"do": "settle", "donors": 2},
        ask(asked, "again"),
    ]
    # The service's own default mode.
    played = stories.play(
        steps, ("--mode", "discovery-only"), {"mode": "discovery_only", "kv_store": "memory"}
    )
    assert played.outputs("one") + played.outputs("two") == expected
    assert played.outputs("again") == expected
    (seen,) = played.lines("two", "lookup")
    print({name: seen[name] for name in ("outcome", "verified_tokens", "spans", "similarity")})
    assert seen["outcome"] == "spans"
    assert seen["verified_tokens"] >= 0.9 * DOCUMENT_TOKENS
    assert not seen["leased"]
    assert played.computed("two") >= DOCUMENT_TOKENS
    assert played.left["leases"] == 0
