"""Discovery in a real vLLM, through our connector and through semblend's: what it finds is written
down, and the engine says exactly what it says without."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import Server
from harness import Engine, passages

DOCUMENT = "\n\n".join(passages()[:8])
INSTRUCTIONS = (
    "Summarise the address.\n",
    "List every duty that the address names, one a line, please.\n",
)
PROMPTS = [f"{instruction}{DOCUMENT}\nAnswer:" for instruction in INSTRUCTIONS]
STEPS = [{"prompts": PROMPTS[:1]}, {"await_donors": 1}, {"prompts": PROMPTS[1:]}]
# The engine is alone with its prompt here, the machine is not.
LOOKUP_TIMEOUT_MS = "1000"

KVATLAS = {
    "kv_connector": "KvatlasConnector",
    "kv_connector_module_path": "kvatlas.vllm",
    "kv_role": "kv_both",
    "kv_load_failure_policy": "recompute",
    "kv_connector_extra_config": {"mode": "discovery_only"},
}
SEMBLEND = {
    "kv_connector": "SemBlendVllmConnector",
    "kv_connector_module_path": "semblend_vllm_connector.connector",
    "kv_role": "kv_both",
    "kv_load_failure_policy": "recompute",
    "kv_connector_extra_config": {
        "mode": "discovery_only",
        "provider_module": "kvatlas.semblend",
        "provider_class": "KvatlasSemanticProvider",
    },
}


@pytest.fixture(scope="module")
def without(
    engine_python: str, model: Path, tmp_path_factory: pytest.TempPathFactory
) -> list[dict[str, Any]]:
    """What the engine says to the prompts without a connector."""
    engine = Engine(engine_python, tmp_path_factory.mktemp("without"))
    return engine.generate(model, [{"prompts": [one]} for one in PROMPTS]).results


@pytest.fixture
def discovered(
    engine: Engine, model: Path, serve: Callable[..., Server]
) -> Callable[..., tuple[Any, int]]:
    """Plays the prompts with a connector; what came, and how many tokens the document has."""

    def play(connector: dict[str, Any], *arguments: str) -> tuple[Any, int]:
        address = serve(*arguments).address
        environment = {"KVATLAS_ADDRESS": address, "KVATLAS_LOOKUP_TIMEOUT_MS": LOOKUP_TIMEOUT_MS}
        generated = engine.generate(model, STEPS, connector, environment=environment)
        return generated, shared_tokens(*(one["prompt_token_ids"] for one in generated.results))

    return play


def shared_tokens(one: list[int], other: list[int]) -> int:
    """How many the two have in common at the end: the document's, but for where it begins."""
    pairs = zip(reversed(one), reversed(other), strict=False)
    return next(count for count, (a, b) in enumerate(pairs) if a != b)


def test_semblends_connector_finds_spans(
    discovered: Callable[..., tuple[Any, int]], without: list[dict[str, Any]]
) -> None:
    generated, document = discovered(SEMBLEND)
    assert document > 2000
    events = {line["event"]: line for line in generated.audit}
    assert events["semantic_lookup_miss"]["miss_rejection_reason"] == "provider_miss"
    hit = events["semantic_lookup_hit"]
    assert hit["reason"] == "kvatlas_spans"
    assert hit["confidence_tier"] == "verified"
    assert hit["reusable_tokens"] > 0.9 * document
    assert "lookup_error" not in events
    assert generated.outputs() == [one["tokens"] for one in without]


def test_our_connector_finds_spans(
    discovered: Callable[..., tuple[Any, int]], without: list[dict[str, Any]]
) -> None:
    generated, document = discovered(KVATLAS)
    assert document > 2000
    first, second = (line for line in generated.audit if line["event"] == "lookup")
    assert first["outcome"] == "miss"
    assert second["outcome"] == "spans"
    assert second["reason"] == "not_prefix_anchored"
    assert second["tier"] == "verified"
    assert second["verified_tokens"] > 0.9 * document
    assert not second["leased"]
    assert generated.outputs() == [one["tokens"] for one in without]
