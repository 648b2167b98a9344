"""A service, fake engines on it, and what their connectors wrote down."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from fake_engine import FakeEngine, Request, engine_config

import kvatlas

WAIT_S_MAX = 30.0
_PAUSE = threading.Event()


class Rig:
    """What a test of the connector is made of."""

    def __init__(self, folder: Path, address: str) -> None:
        self.folder = folder
        self.address = address
        self.client = kvatlas.Client(address, lookup_timeout_s=10.0)
        self.model = folder / "model"
        self.model.mkdir()
        (self.model / "config.json").write_text("{}")
        (self.model / "tokenizer_config.json").write_text('{"chat_template": "t"}')
        self.store = folder / "kv"
        self.audit_path = folder / "audit.jsonl"
        self._engines: list[FakeEngine] = []

    def engine(
        self,
        mode: str = "exact_prefix",
        *,
        extra: dict[str, Any] | None = None,
        changes: dict[str, Any] | None = None,
        **engine: Any,
    ) -> FakeEngine:
        """An engine whose connector asks this rig's service."""
        made = FakeEngine(self.config(mode, extra, **(changes or {})), **engine)
        self._engines.append(made)
        return made

    def config(self, mode: str, extra: dict[str, Any] | None = None, **changes: Any) -> Any:
        """As vLLM hands it to the connector."""
        given = {
            "address": self.address,
            "mode": mode,
            "min_prompt_tokens": 64,
            "min_reuse_tokens": 64,
            "lookup_timeout_ms": 5000,
            "kv_store": str(self.store),
            "audit_path": str(self.audit_path),
            **(extra or {}),
        }
        return engine_config(given, self.model, **changes)

    def close(self) -> None:
        for engine in self._engines:
            engine.close()
        self.client.close()

    def audit(self, event: str) -> list[dict[str, Any]]:
        """What was written down of one kind so far."""
        if not self.audit_path.exists():
            return []
        lines = self.audit_path.read_text().split("\n")[:-1]
        return [line for line in map(json.loads, lines) if line["event"] == event]

    def until(self, true: Callable[[], bool], engine: FakeEngine | None = None) -> None:
        """Waits for what happens beside the engine, which goes on meanwhile."""
        deadline = time.monotonic() + WAIT_S_MAX
        while not true():
            assert time.monotonic() < deadline, f"not within {WAIT_S_MAX} s"
            if engine is not None:
                engine.step()
            _PAUSE.wait(0.002)

    def until_registered(self, count: int, engine: FakeEngine) -> None:
        self.until(lambda: len(self.audit("registered")) >= count, engine)

    def until_no_lease(self) -> None:

        def none_held() -> bool:
            try:
                return self.client.status().leases_held == 0
            except kvatlas.KvatlasError:
                # It has just been started again.
                return False

        self.until(none_held)

    def reuse(self, request_id: str, count: int = 1) -> dict[str, Any]:
        """What was last reported of a request, once that many reports are there."""

        def lines() -> list[dict[str, Any]]:
            return [line for line in self.audit("reuse") if line["request_id"] == request_id]

        self.until(lambda: len(lines()) >= count)
        return lines()[-1]

    def declined(self, request_id: str) -> str:
        """Why a request was declined, once it is."""

        def reasons() -> list[str]:
            lines = self.audit("declined")
            return [line["reason"] for line in lines if line["request_id"] == request_id]

        self.until(lambda: bool(reasons()))
        return reasons()[-1]


def prompt(seed: int, length: int = 400) -> list[int]:
    return np.random.default_rng(seed).integers(3, 30_000, length).tolist()


def request(name: str, tokens: list[int], **fields: Any) -> Request:
    return Request(name, list(tokens), **fields)
