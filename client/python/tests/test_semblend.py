"""The provider for semblend-vllm-connector, as its own release uses it, against a real server."""

from __future__ import annotations

import itertools
import json
import pathlib
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from conftest import Server, make_namespace, prompt, start
from hypothesis import given, settings
from hypothesis import strategies as st

import kvatlas
from kvatlas.semblend.runs import RUN_TOKENS_MIN, SeenRuns

pytest.importorskip("semblend_vllm_connector", reason="semblend-vllm-connector is not installed")

from semblend_vllm_connector.config import SemBlendVllmConfig
from semblend_vllm_connector.connector import KVConnectorRole, SemBlendVllmConnector
from semblend_vllm_connector.namespace import namespace_for_request
from semblend_vllm_connector.types import DonorRegistration, SemanticLookupRequest

from kvatlas.semblend import KvatlasSemanticProvider
from kvatlas.semblend.provider import store

EVENTUALLY_S_MAX = 20.0
MODEL = "m"

Provider = Callable[..., KvatlasSemanticProvider]


@pytest.fixture(scope="module")
def discovering(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server as it is without a word about its mode."""
    folder = tmp_path_factory.mktemp("discovering")
    running = start(["--data-dir", str(folder / "data")], "127.0.0.1:0", str(folder / "s.sock"))
    yield running
    running.stop()


@pytest.fixture
def provider(discovering: Server, monkeypatch: pytest.MonkeyPatch) -> Provider:
    """Makes one for that server; keywords go to the connector's configuration."""
    monkeypatch.setenv("KVATLAS_ADDRESS", discovering.address)
    monkeypatch.setenv("KVATLAS_LOOKUP_TIMEOUT_MS", "10000")
    return lambda **config: KvatlasSemanticProvider(SemBlendVllmConfig(model_id=MODEL, **config))


@pytest.fixture
def digest(request: pytest.FixtureRequest) -> str:
    """A namespace as the connector hands it over, of this test alone."""
    return f"vllm:{request.node.name}"


def look_up(
    provider: KvatlasSemanticProvider, digest: str, tokens: Any, **fields: Any
) -> Any | None:
    request = {"request_id": "asking", "prompt_text": None, "model_id": MODEL, **fields}
    return provider.lookup(
        SemanticLookupRequest(token_ids=[int(t) for t in tokens], namespace=digest, **request)
    )


def register(provider: KvatlasSemanticProvider, digest: str, tokens: Any, **fields: Any) -> None:
    donor = {"donor_id": "donor", "prompt_text": None, "model_id": MODEL, **fields}
    provider.register_donor(
        DonorRegistration(token_ids=[int(t) for t in tokens], namespace=digest, **donor)
    )


def eventually(check: Callable[[], Any]) -> Any:
    """What it says once it says something; registrations happen beside the engine."""
    deadline = time.monotonic() + EVENTUALLY_S_MAX
    while not (answer := check()):
        assert time.monotonic() < deadline, "it never came"
    return answer


def reason(provider: KvatlasSemanticProvider) -> str:
    told = provider.last_lookup_diagnostics()
    assert told is not None
    return str(told["rejection_reason"])


def document(seed: int = 1) -> Any:
    return prompt(seed)


def wrapped(inner: Any, seed: int) -> Any:
    """Behind another instruction, at another position."""
    return np.concatenate([prompt(seed, 24), inner, prompt(seed + 1, 9)])


def test_settings_that_are_not_its_own_do_not_concern_it(
    monkeypatch: pytest.MonkeyPatch, provider: Provider, digest: str
) -> None:
    """The server's variable for its mode has the name of our connector's."""
    monkeypatch.setenv("KVATLAS_MODE", "materialize")
    assert look_up(provider(), digest, document()) is None


def test_another_instruction_finds_verified_spans(provider: Provider, digest: str) -> None:
    made, donor, target = provider(), wrapped(document(), 100), wrapped(document(), 200)[7:]
    assert look_up(made, digest, target) is None
    assert reason(made) == "provider_miss"
    register(made, digest, donor)
    found = eventually(lambda: look_up(made, digest, target))
    assert found.donor_id == "donor"
    assert found.reason == "kvatlas_spans"
    assert found.materialization_kind.value == "discovery_only"
    assert found.quality_signals["confidence_tier"] == "verified"
    assert found.donor_token_ids is None
    assert found.reusable_token_count >= 0.9 * len(document())
    assert found.reusable_token_count == sum(span.token_count for span in found.segments)
    for span in found.segments:
        there = slice(span.donor_start, span.donor_start + span.token_count)
        here = slice(span.target_start, span.target_start + span.token_count)
        assert span.token_count > 0
        assert list(donor[there]) == list(target[here])
    assert made.last_lookup_diagnostics() is None


def test_a_prefix_gives_the_tokens_that_are_known(provider: Provider, digest: str) -> None:
    made, target = provider(), np.concatenate([document(), prompt(9, 40)])
    register(made, digest, document())
    found = eventually(lambda: look_up(made, digest, target))
    assert found.reason == "kvatlas_prefix"
    assert found.quality_signals["confidence_tier"] == "exact"
    assert found.donor_token_ids == list(document())
    beyond = look_up(made, digest, target, already_computed_tokens=608, request_id="later")
    assert beyond is None
    assert reason(made) == "exact_prefix_sufficient"


def test_captures_of_a_span_mode_are_never_exact(provider: Provider, digest: str) -> None:
    made, target = provider(mode="semantic_span_experimental"), wrapped(document(), 5)[24:]
    register(made, digest, document())
    found = eventually(lambda: look_up(made, digest, target))
    assert found.quality_signals["confidence_tier"] == "verified"


def test_what_is_said_to_be_where() -> None:
    def told(**config: Any) -> tuple[str, str]:
        made = SemBlendVllmConfig(model_id=MODEL, **config)
        return store(made, made.mode)

    # Without a capture there is the engine's own cache, which nobody can lease unseen.
    assert told(mode="discovery_only")[0] == "device"
    disk = told(mode="exact_prefix", kv_storage_path="/mnt/kv")
    assert disk[0] == "disk"
    assert disk[1].endswith(":/mnt/kv")
    assert told(mode="exact_prefix", kv_storage_backend="memory")[0] == "host"
    assert len(told(mode="exact_prefix", kv_storage_path="ä" * 300)[1].encode()) <= 256


def test_a_request_never_finds_itself(provider: Provider, digest: str) -> None:
    made = provider()
    register(made, digest, document(), donor_id="r-1")
    eventually(lambda: look_up(made, digest, document()))
    assert look_up(made, digest, document(), request_id="r-1") is None


def test_tenants_and_adapters_are_apart(provider: Provider, digest: str) -> None:
    made = provider()
    register(made, digest, document(), cache_salt="acme")
    eventually(lambda: look_up(made, digest, document(), cache_salt="acme"))
    for other in ({"cache_salt": "beta"}, {"cache_salt": None}):
        assert look_up(made, digest, document(), **other) is None
        assert reason(made) == "provider_miss"
    assert look_up(made, f"{digest}-adapter", document(), cache_salt="acme") is None
    assert reason(made) == "provider_miss"
    for blank in ("", " \t"):
        assert look_up(made, digest, document(), cache_salt=blank) is None
        assert reason(made) == "namespace_mismatch"
    assert look_up(made, "", document()) is None
    assert reason(made) == "namespace_mismatch"


def test_only_what_is_captured_is_registered(provider: Provider, digest: str) -> None:
    made = provider()
    register(made, digest, document(1), has_captured_kv=False)
    register(made, digest, document(2), donor_id="second")
    eventually(lambda: look_up(made, digest, document(2)))
    assert look_up(made, digest, document(1)) is None


def test_cleared_donors_are_gone(provider: Provider, digest: str) -> None:
    made = provider()
    register(made, digest, document())
    eventually(lambda: look_up(made, digest, document()))
    made.clear_donors()
    eventually(lambda: look_up(made, digest, document()) is None)
    assert reason(made) == "provider_miss"


def test_the_owner_is_announced(
    serve: Callable[..., Server], monkeypatch: pytest.MonkeyPatch, digest: str
) -> None:
    running = serve()
    monkeypatch.setenv("KVATLAS_ADDRESS", running.address)
    made = KvatlasSemanticProvider(SemBlendVllmConfig(model_id=MODEL))
    with kvatlas.Client(running.address) as client:
        assert client.status().owners_live == 0
        register(made, digest, document())
        eventually(lambda: client.status().donors)
        assert client.status().owners_live == 1
        # A server that began anew knows the owner before its next donor.
        running.stop()
        back = running.again()
        try:
            assert client.connect(20)
            assert client.status().owners_live == 0
            register(made, digest, document(2), donor_id="next")
            eventually(lambda: client.status().donors == 2)
            assert client.status().owners_live == 1
        finally:
            back.stop()


def test_thresholds_are_the_connectors(provider: Provider, digest: str) -> None:
    strict = provider(min_similarity=0.99)
    target = np.concatenate([document(), prompt(9, 400)])
    register(strict, digest, document())
    eventually(lambda: look_up(strict, digest, document()))
    assert look_up(strict, digest, target) is None
    assert reason(strict) == "low_similarity"
    assert look_up(provider(min_similarity=0.5), digest, target, request_id="other") is not None


def test_nothing_is_raised_without_a_server(
    serve: Callable[..., Server], monkeypatch: pytest.MonkeyPatch, digest: str
) -> None:
    gone = serve()
    monkeypatch.setenv("KVATLAS_ADDRESS", gone.address)
    made = KvatlasSemanticProvider(SemBlendVllmConfig(model_id=MODEL))
    gone.stop()
    for number in range(300):
        register(made, digest, document(number), donor_id=str(number))
    assert look_up(made, digest, document()) is None
    assert reason(made) in ("provider_error", "provider_timeout")
    made.clear_donors()
    # What the connector may hand over one day.
    assert made.lookup(SimpleNamespace()) is None
    made.register_donor(SimpleNamespace())
    assert made.span_run_possible(None, None, 0, 1) is None


STATED = {
    "model": MODEL,
    "model_revision": "1",
    "tokenizer": "t",
    "tokenizer_revision": "1",
    "tokenization": "default",
    "chat_template": "none",
    "dtype": "bfloat16",
    "kv_cache_dtype": "auto",
    "block_size": 32,
    "kv_layout": "NHD",
    "attention_backend": "cpu_attn",
    "tensor_parallel_size": 1,
    "pipeline_parallel_size": 1,
    "rope_scaling": "none",
}


def handed(block_size: int = 32, lora: Any = None, salt: str | None = None) -> str:
    """The digest that the connector makes in such an engine."""
    engine = SimpleNamespace(
        model_config=SimpleNamespace(tokenizer="t", dtype="torch.bfloat16"),
        cache_config=SimpleNamespace(block_size=block_size),
    )
    request = SimpleNamespace(cache_salt=salt, lora_request=lora)
    return namespace_for_request(SemBlendVllmConfig(model_id=MODEL), engine, request)


def test_engines_share_where_they_say_what_they_are(
    provider: Provider,
    discovering: Server,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: pathlib.Path,
) -> None:
    file = tmp_path / "ns.json"
    file.write_text(json.dumps(STATED))
    monkeypatch.setenv("KVATLAS_NAMESPACE", str(file))
    made = provider()
    client = kvatlas.Client(discovering.address)
    client.announce_owner("elsewhere", 7)
    client.register_donor(
        kvatlas.Donor(
            donor_id="theirs",
            namespace=make_namespace(**STATED, tenant_key=kvatlas.tenant_key("acme")),
            owner=kvatlas.Owner("elsewhere"),
            owner_generation=7,
            tokens=document(),
            captured_tokens=len(document()),
            medium="host",
            store_id="theirs",
        )
    )
    client.close()
    found = look_up(made, handed(salt="acme"), document(), cache_salt="acme")
    assert found is not None
    assert found.donor_id == "theirs"
    for digest, salt in (
        (handed(), None),
        (handed(salt="beta"), "beta"),
    ):
        assert look_up(made, digest, document(), cache_salt=salt) is None
        assert reason(made) == "provider_miss"
    doubtful = (
        handed(block_size=16, salt="acme"),
        handed(lora="an adapter", salt="acme"),
        handed(salt="beta"),
    )
    for digest in doubtful:
        assert look_up(made, digest, document(), cache_salt="acme") is None
        assert reason(made) == "namespace_mismatch"
    assert look_up(made, handed(), document(), model_id="other") is None
    assert reason(made) == "namespace_mismatch"
    # Others' donors are not known here, so nothing is ruled out.
    assert made.span_run_possible(list(prompt(77)), handed(), 0, 512) is None


def test_an_incomplete_namespace_is_a_miss(
    provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in STATED:
        if name in ("model", "tokenizer", "block_size", "dtype"):
            continue
        fields = {key: value for key, value in STATED.items() if key != name}
        monkeypatch.setenv("KVATLAS_NAMESPACE", json.dumps(fields))
        made = provider()
        assert look_up(made, handed(), document()) is None
        told = made.last_lookup_diagnostics()
        assert told is not None
        assert told["rejection_reason"] == "namespace_mismatch"
        assert name in told["detail"]
    for wrong in ('{"modell": "m"}', "{", "no-such-file.json"):
        monkeypatch.setenv("KVATLAS_NAMESPACE", wrong)
        with pytest.raises((ValueError, OSError)):
            provider()


def test_runs_that_no_donor_holds_are_ruled_out(provider: Provider, digest: str) -> None:
    made, donor = provider(), document()
    held = np.concatenate([prompt(3, 50), donor[101:700]])
    assert made.span_run_possible(list(held), digest, 50, 512) is False
    register(made, digest, donor)
    assert made.span_run_possible(list(held), digest, 50, 512) is True
    assert made.span_run_possible(list(prompt(4)), digest, 0, 512) is False
    assert made.span_run_possible(list(held), f"{digest}-other", 50, 512) is False
    # Beyond the prompt's end there is no run.
    assert made.span_run_possible(list(held), digest, 200, 512) is False
    # Too short to cover a whole window.
    assert made.span_run_possible(list(held), digest, 50, RUN_TOKENS_MIN - 1) is None


@settings(deadline=None)
@given(st.data())
def test_what_a_prompt_holds_is_never_ruled_out(data: st.DataObject) -> None:
    """The slow twin looks at every position."""
    seed = data.draw(st.integers(0, 2**32 - 1))
    # Few words, so that windows recur.
    words = np.random.default_rng(seed).integers(0, 2**32, data.draw(st.integers(1, 3)))
    prompts = [
        words[np.random.default_rng(seed + i).integers(0, len(words), size)]
        for i, size in enumerate(data.draw(st.lists(st.integers(0, 700), max_size=4)))
    ]
    seen = SeenRuns()
    for one in prompts:
        seen.add("n", one)
    source = data.draw(st.sampled_from([*prompts, words[np.zeros(400, int)]]))
    start = data.draw(st.integers(0, len(source)))
    run = source[start : start + data.draw(st.integers(RUN_TOKENS_MIN, 600))]
    somewhere = any(
        (one[i : i + len(run)] == run).all()
        for one in prompts
        for i in range(len(one) - len(run) + 1)
    )
    answer = seen.can_hold("n", run)
    if len(run) < RUN_TOKENS_MIN:
        assert answer is None
    elif somewhere:
        assert answer is True
    else:
        assert answer is not None


def test_a_full_memory_rules_nothing_out() -> None:
    seen = SeenRuns(windows_max=10)
    seen.add("n", prompt(1, 640))
    assert seen.can_hold("n", prompt(2, 200)) is False
    seen.add("n", prompt(3, 64))
    assert seen.can_hold("n", prompt(2, 200)) is None


class Played:
    """semblend-vllm-connector itself, on its stand-ins for vLLM, through requests' lives."""

    def __init__(self, folder: pathlib.Path, model: str, mode: str) -> None:
        self._audit = folder / "audit.jsonl"
        extra = {
            "mode": mode,
            "provider_module": "kvatlas.semblend",
            "provider_class": "KvatlasSemanticProvider",
            "min_prompt_tokens": 512,
            "model_id": model,
            "audit_path": str(self._audit),
            "kv_storage_path": str(folder / "kv"),
        }
        engine = SimpleNamespace(
            kv_transfer_config=SimpleNamespace(kv_connector_extra_config=extra),
            model_config=SimpleNamespace(model=model, tokenizer="t", dtype="torch.bfloat16"),
            cache_config=SimpleNamespace(block_size=32),
            scheduler_config=SimpleNamespace(),
            parallel_config=SimpleNamespace(),
        )
        self._connector = SemBlendVllmConnector(engine, KVConnectorRole.SCHEDULER)
        self._requests = itertools.count()

    def request(self, tokens: Any) -> None:
        request = SimpleNamespace(
            request_id=f"r-{next(self._requests)}",
            prompt_token_ids=[int(t) for t in tokens],
            cache_salt="acme",
            lora_request=None,
        )
        self._connector.on_new_request(request)
        assert self._connector.get_num_new_matched_tokens(request, 0) == (0, False)
        self._connector.request_finished(request, [])

    def events(self, name: str) -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in self._audit.read_text().splitlines()]
        return [line for line in lines if line["event"] == name]


@pytest.mark.usefixtures("provider")
def test_the_connector_of_the_index_takes_it(digest: str, tmp_path: pathlib.Path) -> None:
    played = Played(tmp_path, digest, "discovery_only")
    played.request(wrapped(document(), 100))

    def again() -> Any:
        played.request(wrapped(document(), 200)[7:])
        return played.events("semantic_lookup_hit")

    hit = eventually(again)[0]
    assert hit["donor_id"] == "r-0"
    assert hit["reason"] == "kvatlas_spans"
    assert hit["reusable_tokens"] >= 0.9 * len(document())
    miss = played.events("semantic_lookup_miss")[0]
    assert miss["miss_rejection_reason"] == "provider_miss"
    assert not played.events("lookup_error")


@pytest.mark.usefixtures("provider")
def test_its_span_mode_is_spared_look_ups(digest: str, tmp_path: pathlib.Path) -> None:
    played = Played(tmp_path, digest, "semantic_span_experimental")
    played.request(document(1))
    assert len(played.events("lookup_skipped_no_shared_run")) == 1
    # The beginning is known now, so that the service is asked.
    played.request(document(1))
    assert len(played.events("lookup_skipped_no_shared_run")) == 1
    played.request(document(2))
    assert len(played.events("lookup_skipped_no_shared_run")) == 2
    assert len(played.events("donor_registered")) == 3
