"""exact_prefix in a real vLLM: a repeated prompt is loaded, and says what it said before."""

from __future__ import annotations

import random
import statistics
from pathlib import Path
from typing import Any

import pytest
from harness import Engine, audit_lines, default_llm

VOCABULARY = 5000
EXTRA = {
    "mode": "exact_prefix",
    "min_prompt_tokens": 64,
    "min_reuse_tokens": 64,
    # The engine and the service share a busy machine's processors.
    "lookup_timeout_ms": 1000,
}
SERVICE = ["--lease-ttl-ms", "20000"]


def prompts(count: int, seed: int, shortest: int = 150, longest: int = 2000) -> list[list[int]]:
    """Of lengths all over the range, none like another."""
    chance = random.Random(seed)
    lengths = [shortest + (longest - shortest) * number // count for number in range(count)]
    return [[chance.randrange(3, VOCABULARY) for _ in range(length)] for length in lengths]


class Play:
    """Plays stories with one model."""

    def __init__(self, engine: Engine, model: Path, folder: Path) -> None:
        self._engine = engine
        self._model = model
        self.folder = folder / "kv"
        self.audit_path = folder / "audit.jsonl"

    def cold(self, steps: list[dict[str, Any]], **llm: Any) -> list[list[int]]:
        """Outputs without a connector."""
        played = self._play(None, [], steps, llm)
        return [result["tokens"] for result in played["results"]]

    def connected(
        self, steps: list[dict[str, Any]], service: list[str] = SERVICE, **llm: Any
    ) -> dict[str, Any]:
        """With the connector and a folder of donors; its audit lines beside the answer."""
        extra = {**EXTRA, "kv_store": str(self.folder), "audit_path": str(self.audit_path)}
        played = self._play(extra, service, steps, llm)
        return {**played, "audit": audit_lines(self.audit_path)}

    def _play(
        self,
        extra: dict[str, Any] | None,
        service: list[str],
        steps: list[dict[str, Any]],
        llm: dict[str, Any],
    ) -> dict[str, Any]:
        spec = {
            "model": str(self._model),
            "llm": {**default_llm(), **llm},
            "extra": extra,
            "service": service,
            "steps": steps,
        }
        return self._engine.run("play_connector.py", spec)


@pytest.fixture
def play(engine: Engine, model: Path, tmp_path: Path) -> Play:
    return Play(engine, model, tmp_path)


CHUNKED = {"enable_chunked_prefill": True, "max_num_batched_tokens": 256}
WHOLE = {"enable_chunked_prefill": False, "max_num_batched_tokens": 4096}


@pytest.mark.parametrize("llm", [WHOLE, CHUNKED], ids=["whole", "chunked"])
def test_repeated_prompts_are_loaded(play: Play, llm: dict[str, Any]) -> None:
    asked = prompts(20, seed=1)
    expected = play.cold([{"prompts": asked}], **llm)
    steps = [{"prompts": asked}, {"settle": len(asked)}, {"reset": True}, {"prompts": asked}]
    played = play.connected([*steps, {"settle": 0}], **llm)
    cold, warm = played["results"][: len(asked)], played["results"][len(asked) :]
    assert [result["tokens"] for result in cold] == expected
    assert [result["tokens"] for result in warm] == expected

    def computed(results: list[dict[str, Any]]) -> int:
        return sum(result["prompt_tokens"] - result["cached_tokens"] for result in results)

    def first_token_s(results: list[dict[str, Any]]) -> float:
        return statistics.median(result["first_token_s"] for result in results[10:])

    print(f"computed {computed(cold)} -> {computed(warm)} tokens, ", end="")
    print(f"first token {first_token_s(cold):.4f} -> {first_token_s(warm):.4f} s (longer half)")
    assert computed(warm) <= 0.2 * computed(cold)
    assert first_token_s(warm) < first_token_s(cold)
    reused = [line for line in played["audit"] if line["event"] == "reuse"]
    assert [line["provenance"] for line in reused] == ["exact_external_hit"] * len(asked)
    assert played["left"]["leases"] == 0


# What is done to the donors or the service once they are there, and the reason that is recorded.
FAULTS: dict[str, tuple[list[dict[str, Any]], str]] = {
    "deleted": ([{"damage": "delete"}], "load_failed"),
    "truncated": ([{"damage": "truncate"}], "load_failed"),
    "bit_flipped": ([{"damage": "flip"}], "load_failed"),
    "lease_expired": ([{"before_load": "wait", "seconds": 1.6}], "donor_stale"),
    "killed_before_the_load": ([{"before_load": "kill"}], "donor_stale"),
    "killed": ([{"kill": True}], "provider_error"),
    "late": ([{"delay_s": 2.0}], "provider_timeout"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_computed_as_if_nothing_had_been_promised(play: Play, fault: str) -> None:
    asked = prompts(2, seed=2, shortest=700)
    expected = play.cold([{"prompts": asked}])
    steps, reason = FAULTS[fault]
    happens = [{**step, "folder": str(play.folder)} for step in steps]
    before = [{"prompts": asked}, {"settle": len(asked)}, {"reset": True}]
    after = [{"delay_s": 0}, {"kill": True}, {"before_load": None}, {"start": True}]
    after += [{"settle": 0}, {"reset": True}, {"prompts": asked}]
    played = play.connected(
        [*before, *happens, {"prompts": asked}, *after], ["--lease-ttl-ms", "1500"]
    )
    outputs = [result["tokens"] for result in played["results"]]
    assert outputs == expected * 3
    reasons = [line["reason"] for line in played["audit"] if line.get("reason")]
    print(f"{fault}: {reasons}")
    assert reason in reasons
    assert played["left"]["leases"] == 0
