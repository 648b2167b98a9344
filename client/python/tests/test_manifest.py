"""Manifests as engines take them: the provider's contract, what it remembers, and the shapes."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from conftest import Server
from hypothesis import given
from hypothesis import strategies as st
from test_client import EXAMPLE_PRIOR

from kvatlas import Client, Lease, Manifest, Miss
from kvatlas.manifest import BlockManifest, KvatlasManifestProvider, padded_indices, skip_list

PRIOR = EXAMPLE_PRIOR / "priors/perk.pt"


def answer(generation: int, blocks: tuple[int, ...] = (1, 3), ttl_ms: int = 10_000) -> Manifest:
    return Manifest(
        block_indices=blocks,
        total_blocks=8,
        effective_k=len(blocks),
        algorithm="kri-d",
        policy="top-k",
        prior_generation=generation,
        repair=None,
        lease=Lease(b"lease", ttl_ms, 0.0),
        provenance="prior",
        reason="",
    )


@dataclasses.dataclass
class Asked:
    """A client whose answers a test scripts, and a clock."""

    says: Any = None
    calls: list[tuple[Any, ...]] = dataclasses.field(default_factory=list)
    now: float = 100.0

    def get_manifest(self, prefix_hash: str, **options: Any) -> Any:
        self.calls.append((prefix_hash, options["query_hash"], options["k"]))
        return self.says

    def provider(self, **options: Any) -> KvatlasManifestProvider:
        return KvatlasManifestProvider(self, clock=lambda: self.now, **options)


def get(
    provider: KvatlasManifestProvider, prefix: str = "p", query: str | None = None, k: int = 2
) -> Any:
    return provider.get_manifest(prefix_hash=prefix, query_hash=query, K=k)


def test_a_real_prior_answers_and_a_miss_is_none(server: Server) -> None:
    with Client(server.address, lookup_timeout_s=10) as client:
        client.put_prior(PRIOR, "cartridge", algorithm="kmeans_keys")
        provider = KvatlasManifestProvider(client)
        manifest = get(provider, "cartridge", k=4)
        assert isinstance(manifest, BlockManifest)
        assert (manifest.K, manifest.prior_type) == (4, "kmeans_keys")
        assert manifest.resource_id == "cartridge"
        assert list(manifest.block_indices) == sorted(set(manifest.block_indices))
        assert get(provider, "nowhere") is None
        with_policy = KvatlasManifestProvider(client, policy="A1R2K1")
        pinned = get(with_policy, "cartridge", k=4)
        assert pinned is None, "a block list has no scores to pin around"


def test_a_query_aware_provider_wants_a_query() -> None:
    asked = Asked(answer(1))
    for provider in (asked.provider(algorithm="kri-q"), asked.provider(query_aware=True)):
        with pytest.raises(ValueError, match="query_hash"):
            get(provider)
        assert get(provider, query="q").block_indices == (1, 3)
    assert get(asked.provider()) is not None


def test_the_engines_own_class_is_made() -> None:
    made = get(Asked(answer(1)).provider(make=dict))
    assert made == {
        "block_indices": (1, 3),
        "total_blocks": 8,
        "K": 2,
        "prior_type": "kri-d",
        "resource_id": "p",
    }


def test_an_answer_is_remembered_for_its_key_and_a_while() -> None:
    asked = Asked(answer(1))
    provider = asked.provider(max_age_s=1.0)
    for query, k in ((None, 2), ("q", 2), (None, 3), (None, 2), ("q", 2), (None, 3)):
        get(provider, query=query, k=k)
    assert asked.calls == [("p", "", 2), ("p", "q", 2), ("p", "", 3)]
    asked.now += 1.0
    get(provider)
    assert len(asked.calls) == 4


def test_nothing_is_used_beyond_its_lease() -> None:
    asked = Asked(answer(1, ttl_ms=500))
    provider = asked.provider(max_age_s=60.0)
    get(provider)
    asked.now += 0.4
    get(provider)
    assert len(asked.calls) == 1
    asked.now += 0.1
    asked.says = Miss("provider_timeout")
    assert get(provider) is None
    assert len(asked.calls) == 2


@pytest.mark.parametrize("reason", ["provider_timeout", "provider_error", "provider_disabled"])
def test_while_the_server_is_away_a_lease_that_holds_is_used(reason: str) -> None:
    asked = Asked(answer(1, ttl_ms=10_000))
    provider = asked.provider(max_age_s=1.0)
    get(provider)
    asked.now += 5.0
    asked.says = Miss(reason)
    assert get(provider).block_indices == (1, 3)
    asked.now += 5.0
    assert get(provider) is None


def test_a_prior_that_is_gone_is_forgotten() -> None:
    asked = Asked(answer(1))
    provider = asked.provider(max_age_s=1.0)
    get(provider)
    asked.now += 1.0
    asked.says = Miss("provider_miss")
    assert get(provider) is None
    asked.says = Miss("provider_timeout")
    assert get(provider) is None


def test_a_newer_generation_ends_what_the_older_answered() -> None:
    asked = Asked(answer(1, ttl_ms=1_000_000))
    provider = asked.provider(max_age_s=100.0)
    get(provider, k=2)
    asked.now += 1
    get(provider, k=3)
    get(provider, query="q", k=3)
    get(provider, prefix="other", k=3)
    asked.says = answer(7, (2, 5))
    # Not asked again yet; then one K finds out for all that the old prior answered.
    assert get(provider, k=3).block_indices == (1, 3)
    asked.now += 99
    assert get(provider, k=2).block_indices == (2, 5)
    assert get(provider, k=3).block_indices == (2, 5)
    assert get(provider, query="q", k=3).block_indices == (2, 5)
    assert get(provider, prefix="other", k=3).block_indices == (1, 3)


def test_the_memory_is_bounded() -> None:
    asked = Asked(answer(1))
    provider = asked.provider(entries_max=3)
    for k in (1, 2, 3, 4):
        get(provider, k=k)
    get(provider, k=4)
    get(provider, k=2)
    assert len(asked.calls) == 4
    get(provider, k=1)
    assert len(asked.calls) == 5


@pytest.mark.parametrize(
    ("blocks", "total", "k", "says"),
    [
        ((1, 2), 8, 3, "K is 3"),
        ((), 0, 0, "total_blocks"),
        ((8,), 8, 1, "a block outside 0 to 7"),
        ((-1,), 8, 1, "a block outside 0 to 7"),
    ],
)
def test_a_manifest_that_contradicts_itself_is_refused(
    blocks: tuple[int, ...], total: int, k: int, says: str
) -> None:
    with pytest.raises(ValueError, match=says):
        BlockManifest(blocks, total, k, "kri-d", "p")


BLOCKS = st.sets(st.integers(0, 40), min_size=1).map(lambda found: tuple(sorted(found)))


@given(BLOCKS, st.integers(0, 50))
def test_the_skip_list_is_the_complement(blocks: tuple[int, ...], logical: int) -> None:
    manifest = BlockManifest(blocks, 41, len(blocks), "kri-d", "p")
    assert skip_list(manifest, logical) == [one for one in range(logical) if one not in blocks]
    assert skip_list(None, logical) == []


@given(st.lists(st.tuples(st.one_of(st.none(), BLOCKS), st.integers(0, 50)), max_size=5))
def test_padded_indices_are_sglangs_shape(batch: list[tuple[Any, int]]) -> None:
    manifests = [
        None if blocks is None else BlockManifest(blocks, 41, len(blocks), "kri-d", "p")
        for blocks, _ in batch
    ]
    selected, lengths = padded_indices(manifests, [logical for _, logical in batch])
    assert (selected.dtype, lengths.dtype) == (np.int32, np.int32)
    rows = [
        [one for one in (range(logical) if blocks is None else blocks) if one < logical]
        for blocks, logical in batch
    ]
    assert lengths.tolist() == [len(row) for row in rows]
    width = max((len(row) for row in rows), default=0)
    assert selected.shape == (len(batch), width)
    assert selected.tolist() == [row + [-1] * (width - len(row)) for row in rows]
