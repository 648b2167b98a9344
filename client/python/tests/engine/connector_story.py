"""Plays stories with KvatlasConnector, and compares what the engine says with cold runs."""

from __future__ import annotations

import dataclasses
import os
import random
from pathlib import Path
from typing import Any

from harness import HERE, Engine, audit_lines, default_llm

BINARY = HERE.parents[3] / "target" / "debug" / "kvatlas"
VOCABULARY = 5000
# So long that a lease that is not given back is still there at the end.
LEASE_TTL_MS = 600_000
EXTRA = {
    "mode": "exact_prefix",
    "min_prompt_tokens": 64,
    "min_reuse_tokens": 64,
    # The engine and the service share a busy machine's processors.
    "lookup_timeout_ms": 1000,
}

Result = dict[str, Any]
Step = dict[str, Any]


def prompts(count: int, seed: int, shortest: int = 150, longest: int = 2000) -> list[list[int]]:
    """Of lengths all over the range, none like another."""
    chance = random.Random(seed)
    lengths = [shortest + (longest - shortest) * number // count for number in range(count)]
    return [[chance.randrange(3, VOCABULARY) for _ in range(length)] for length in lengths]


@dataclasses.dataclass(frozen=True)
class Played:
    """What came of a story."""

    chapters: dict[str, list[Result]]
    left: dict[str, int]
    times: dict[str, dict[str, list[float]]]
    audit: list[dict[str, Any]]
    preemptions: int
    # Of moved KV: the largest difference from what was computed there, and the largest value.
    moved: list[tuple[float, float]]
    # When a restarted service was there again, by time.time().
    back_s: float

    def outputs(self, chapter: str) -> list[list[int]]:
        """What was said, in order."""
        return [result["tokens"] for result in self.chapters[chapter]]

    def computed(self, chapter: str) -> int:
        """Prompt tokens that were neither cached nor loaded."""
        return sum(one["prompt_tokens"] - one["cached_tokens"] for one in self.chapters[chapter])

    def lines(self, chapter: str, event: str) -> list[dict[str, Any]]:
        """What the connector wrote down of a chapter's requests."""
        names = {result["request_id"] for result in self.chapters[chapter]}
        return [
            line
            for line in self.audit
            if line["event"] == event
            # vLLM adds something of its own to the names of requests.
            and line["request_id"].rpartition("-")[0] in names
        ]


class Stories:
    """One model, and a folder for donors and audit lines."""

    def __init__(self, engine: Engine, model: Path, folder: Path) -> None:
        self._engine = engine
        self._model = model
        self.donors = folder / "kv"
        self._audit = folder / "audit.jsonl"

    def cold(self, asked: list[list[int]], **llm: Any) -> list[list[int]]:
        """What the engine says to each without a connector."""
        return self._play(None, [], [ask(asked, "cold")], llm).outputs("cold")

    def play(
        self,
        steps: list[Step],
        service: tuple[str, ...] = (),
        extra: dict[str, Any] | None = None,
        lease_ttl_ms: int = LEASE_TTL_MS,
        **llm: Any,
    ) -> Played:
        """With the connector and a folder of donors."""
        given = {
            **EXTRA,
            "kv_store": str(self.donors),
            "audit_path": str(self._audit),
            **(extra or {}),
        }
        return self._play(given, list(service), steps, llm, lease_ttl_ms)

    def _play(
        self,
        extra: dict[str, Any] | None,
        service: list[str],
        steps: list[Step],
        llm: dict[str, Any],
        lease_ttl_ms: int = LEASE_TTL_MS,
    ) -> Played:
        answer = self._engine.run(
            "play_connector.py",
            {
                "model": str(self._model),
                "binary": os.environ.get("KVATLAS_BIN") or str(BINARY),
                "llm": {**default_llm(), **llm},
                "extra": extra,
                "service": service,
                "lease_ttl_ms": lease_ttl_ms,
                "steps": steps,
            },
        )
        audit = audit_lines(self._audit) if extra is not None else []
        return Played(
            chapters=answer["results"],
            left=answer["left"],
            times=answer["times"],
            audit=audit,
            preemptions=answer["preemptions"],
            moved=answer["moved"],
            back_s=answer["back_s"],
        )


def ask(asked: list[list[int]], chapter: str, **how: Any) -> Step:
    return {"do": "ask", "prompts": asked, "chapter": chapter, **how}


def again(donors: int = 0) -> list[Step]:
    """So that the next asking finds nothing in the engine's own cache."""
    return [{"do": "settle", "donors": donors}, {"do": "reset"}]
