"""The provider for SGLang's proposed fuzzy cache, driven as that cache drives it.

The engine's data types are those that `kvatlas.sglang` writes down; the cache below does with a
match what the pull request does.
"""

from __future__ import annotations

import dataclasses
from array import array
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from conftest import Server, prompt

import kvatlas
from kvatlas import Client, Found, Miss
from kvatlas.sglang import FuzzyMatchProvider, FuzzyMatchResult, KvatlasFuzzyMatchProvider

CONFIG = SimpleNamespace(fuzzy_min_match_length=16)


class Cache:
    """Matches, validates and registers in FuzzyRadixCache's order; holds slots, not KV."""

    def __init__(self, provider: FuzzyMatchProvider) -> None:
        self.provider = provider
        self.nodes: set[int] = set()
        self.slots_given = 1000

    def match(self, request: Any, tokens: np.ndarray, exact: int) -> Any | None:
        result = self.provider.match_on_prefix_miss(
            prompt_token_ids=array("q", tokens.tolist()),
            already_matched_len=exact,
            request=request,
            extra_key=request.extra_key,
        )
        if result is None or result.donor_last_node_id not in self.nodes:
            return None
        assert len(result.kv_cache_indices) == result.cached_token_count
        assert result.cached_start_pos != exact
        assert result.cached_token_ids == tokens[exact:][: result.cached_token_count].tolist()
        assert exact + result.cached_token_count < len(tokens)
        request.fuzzy_match_result = result
        return result

    def finish(self, request: Any, tokens: np.ndarray) -> tuple[bool, np.ndarray]:
        slots = np.arange(self.slots_given, self.slots_given + len(tokens))
        given = slots.copy()
        self.slots_given += len(tokens)
        kept = self.provider.cache_on_request_finished(
            request=request,
            token_ids=tokens.tolist(),
            kv_cache=slots,
            cache_start_pos=0,
            cache_end_pos=len(tokens),
            radix_tree=self,
        )
        node = len(self.nodes) + 1
        self.nodes.add(node)
        self.provider.on_donor_inserted(request=request, donor_last_node_id=node)
        # The pool's view of the request is used again.
        slots[:] = -1
        return kept, given

    def reset(self) -> None:
        self.provider.on_cache_reset()
        self.nodes.clear()


def request(rid: str, **fields: Any) -> Any:
    return SimpleNamespace(
        **{"rid": rid, "extra_key": None, "lora_id": None, "fuzzy_match_result": None, **fields}
    )


@pytest.fixture
def decisions() -> list[tuple[str, Found | Miss]]:
    return []


@pytest.fixture
def server(serve: Callable[..., Server]) -> Server:
    """Discovers: donors in device memory can be leased only where the engine's events come in."""
    return serve()


@pytest.fixture
def build(
    server: Server, namespace: kvatlas.Namespace, decisions: list[Any]
) -> Iterator[Callable[..., KvatlasFuzzyMatchProvider]]:
    with Client(server.address, lookup_timeout_s=10) as client:
        made: list[KvatlasFuzzyMatchProvider] = []

        def one(**options: Any) -> KvatlasFuzzyMatchProvider:
            using = options.pop("client", client)
            provider = KvatlasFuzzyMatchProvider(
                CONFIG,
                client=using,
                namespace=dataclasses.replace(namespace, tenant_key=""),
                worker_id=namespace.model,
                on_decision=lambda rid, answer: decisions.append((rid, answer)),
                **options,
            )
            made.append(provider)
            return provider

        yield one
        for provider in made:
            provider.close()


def settle(provider: KvatlasFuzzyMatchProvider) -> None:
    """Waits for the calls that are still to be made."""
    provider._calls.submit(lambda: None).result(30)


MOVED = np.concatenate([prompt(1, 64), prompt(2, 1024), prompt(3, 30)])


def test_by_default_a_donor_is_discovered_and_never_nominated(
    build: Callable[..., KvatlasFuzzyMatchProvider], decisions: list[Any]
) -> None:
    provider = build()
    cache = Cache(provider)
    assert cache.finish(request("donor"), prompt(2, 1024))[0]
    settle(provider)
    assert cache.match(request("target"), MOVED, 64) is None
    rid, found = decisions[-1]
    assert rid == "target"
    assert isinstance(found, Found), found
    assert (found.donor_id, found.outcome, found.donor_offset) == ("donor", "prefix", 0)
    assert found.reusable_prefix_tokens == 1024
    assert found.medium == "device"


class Leasing:
    """The real client, but what is found comes with a lease, as if events were followed."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.reports: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.client, name)

    def find_donor(self, *arguments: Any, **options: Any) -> Found | Miss:
        found = self.client.find_donor(*arguments, **options)
        if isinstance(found, Miss):
            return found
        return dataclasses.replace(found, lease=kvatlas.Lease(b"lease", 1000, 0.0))

    def report_reuse(self, request_id: str, provenance: str, **details: Any) -> bool:
        self.reports.append((request_id, provenance, details["tokens_loaded"]))
        return True


@pytest.fixture
def leasing(server: Server) -> Iterator[Leasing]:
    with Client(server.address, lookup_timeout_s=10) as client:
        yield Leasing(client)


def test_on_request_the_donors_slots_are_nominated_and_reported(
    build: Callable[..., KvatlasFuzzyMatchProvider], leasing: Leasing
) -> None:
    provider = build(client=leasing, materialize=True)
    cache = Cache(provider)
    _, slots = cache.finish(request("donor"), prompt(2, 1024))
    settle(provider)
    target = request("target")
    match = cache.match(target, MOVED, 64)
    assert isinstance(match, FuzzyMatchResult)
    assert (match.cached_token_count, match.cached_start_pos) == (1024, 0)
    assert match.position_offset == 64
    assert (match.kv_cache_indices == slots).all()
    assert match.prompt_token_count == len(MOVED)
    assert match.quality_signals.confidence_tier == "verified"
    assert match.quality_signals.passed_quality_gate
    cache.finish(target, MOVED)
    # One that the cache did not take.
    cache.nodes.clear()
    untaken = request("untaken")
    assert cache.match(untaken, MOVED[32:], 32) is None
    cache.finish(untaken, MOVED)
    settle(provider)
    assert leasing.reports[0] == ("target", "request_only_reuse", 1024)
    assert leasing.reports[1][:2] == ("untaken", "candidate_rejected")


class Stubborn(Leasing):
    """Answers every look-up as it did the first, changed as a test wants."""

    first: Found | None = None
    changes: dict[str, Any]

    def find_donor(self, *arguments: Any, **options: Any) -> Found | Miss:
        if self.first is None:
            found = super().find_donor(*arguments, **options)
            assert isinstance(found, Found)
            self.first, self.changes = found, {}
        return dataclasses.replace(self.first, **self.changes)


def test_a_nomination_that_this_process_cannot_vouch_for_is_none(
    build: Callable[..., KvatlasFuzzyMatchProvider], server: Server
) -> None:
    with Client(server.address, lookup_timeout_s=10) as client:
        stubborn = Stubborn(client)
        provider = build(client=stubborn, materialize=True)
        cache = Cache(provider)
        cache.finish(request("donor"), prompt(2, 1024))
        settle(provider)

        def matches(**changes: Any) -> bool:
            stubborn.changes = changes
            return cache.match(request("target"), MOVED, 64) is not None

        assert matches()
        assert not matches(lease=None)
        assert not matches(outcome="spans")
        assert not matches(donor_id="another")
        assert not matches(owner=kvatlas.Owner("another"))
        assert not matches(owner_generation=1)
        assert not matches(donor_offset=16), "beyond the slots"
        assert not matches(donor_offset=64, reusable_prefix_tokens=16), "the tree's own"
        assert not matches(reusable_prefix_tokens=8), "below the least"
        assert matches(donor_offset=16, reusable_prefix_tokens=16)
        assert stubborn.first is not None
        provider.on_cache_reset()
        assert not matches(owner_generation=provider._generation), "the slots are gone"


def test_discovery_nominates_nothing_whatever_is_found(
    build: Callable[..., KvatlasFuzzyMatchProvider], leasing: Leasing
) -> None:
    provider = build(client=leasing)
    cache = Cache(provider)
    cache.finish(request("donor"), prompt(2, 1024))
    settle(provider)
    assert cache.match(request("target"), MOVED, 64) is None


def test_no_slot_of_a_cache_before_a_reset_is_nominated(
    build: Callable[..., KvatlasFuzzyMatchProvider], leasing: Leasing, decisions: list[Any]
) -> None:
    provider = build(client=leasing, materialize=True)
    cache = Cache(provider)
    cache.finish(request("donor"), prompt(2, 1024))
    settle(provider)
    cache.reset()
    settle(provider)
    assert cache.match(request("target"), MOVED, 64) is None
    assert isinstance(decisions[-1][1], Miss), "the older generation's donors went"


@pytest.mark.parametrize(
    "fields",
    [{"multimodal_inputs": object()}, {"input_embeds": [[1.0]]}, {"lora_id": "a"}],
    ids=["images", "embeddings", "adapter"],
)
def test_what_cannot_be_told_apart_is_declined(
    build: Callable[..., KvatlasFuzzyMatchProvider], decisions: list[Any], fields: dict[str, Any]
) -> None:
    cache = Cache(build())
    assert not cache.finish(request("donor", **fields), prompt(2, 1024))[0]
    assert cache.match(request("target", **fields), MOVED, 64) is None
    assert decisions[-1][1].reason == "unsupported_request"


def test_tenants_are_told_apart_by_the_extra_key(
    build: Callable[..., KvatlasFuzzyMatchProvider], decisions: list[Any]
) -> None:
    provider = build()
    cache = Cache(provider)
    cache.finish(request("donor", extra_key="acme"), prompt(2, 1024))
    settle(provider)
    for key, outcome in (("acme", Found), ("other", Miss), (None, Miss)):
        cache.match(request("target", extra_key=key), MOVED, 64)
        assert isinstance(decisions[-1][1], outcome), key
    cache.match(request("target", extra_key=" "), MOVED, 64)
    assert decisions[-1][1].reason == "namespace_mismatch"
    assert not cache.finish(request("blank", extra_key=""), prompt(2, 1024))[0]


def test_a_server_that_is_not_there_costs_nothing_but_the_miss(
    build: Callable[..., KvatlasFuzzyMatchProvider], decisions: list[Any]
) -> None:
    with Client("127.0.0.1:1", lookup_timeout_s=5, control_timeout_s=1) as client:
        provider = build(client=client)
        cache = Cache(provider)
        for number in range(200):
            cache.finish(request(f"donor-{number}"), prompt(2, 32))
        assert cache.match(request("target"), MOVED, 64) is None
        assert decisions[-1][1].reason == "provider_error"
        provider.close()
        assert not cache.finish(request("late"), prompt(2, 32))[0]
