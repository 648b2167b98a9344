"""An answer that contradicts its request or itself is not believed; a true one is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kvatlas import answers
from kvatlas.answers import Asked, Contradiction
from kvatlas.v1 import common_pb2, donors_pb2, routing_pb2

ASKED = Asked(prompt=1000, exact_prefix=100, asynchronous_load=False, minimum_tier="verified")
Response = donors_pb2.FindDonorResponse
Manifest = routing_pb2.GetManifestResponse


def truth() -> Response:
    """Of a donor that continues the exact prefix, moved by 50 tokens."""
    return Response(
        outcome="FIND_OUTCOME_PREFIX",
        match=donors_pb2.DonorMatch(
            donor_id="d",
            owner=common_pb2.Owner(worker_id="w"),
            owner_generation=1,
            medium="MEDIUM_HOST",
            store_id="s",
            tier="TIER_VERIFIED",
            cache_policy="CACHE_POLICY_REQUEST_ONLY",
            reusable_prefix_tokens=200,
            donor_offset=50,
            spans=[
                donors_pb2.Span(donor_start=50, target_start=100, length=200, tier="TIER_VERIFIED"),
                donors_pb2.Span(donor_start=0, target_start=400, length=50, tier="TIER_VERIFIED"),
            ],
            similarity=0.25,
            reuse_ratio=0.2,
            captured_tokens=250,
        ),
        lease=common_pb2.Lease(id=b"lease", ttl_ms=1000),
    )


def read(wire: Response) -> Any:
    return answers.donor(wire, ASKED, 7.0)


def test_the_truth_is_believed() -> None:
    found = read(truth())
    assert found.lease == answers.Lease(b"lease", 1000, 8.0)
    assert found.spans[1] == answers.Span(0, 400, 50, "verified")
    assert (found.medium, found.reason, found.lease_refusal) == ("host", None, None)


def _change(**match: Any) -> Callable[[Response], None]:
    return lambda wire: [setattr(wire.match, name, value) for name, value in match.items()] and None


def _span(index: int, **span: Any) -> Callable[[Response], None]:
    return lambda wire: [setattr(wire.match.spans[index], *pair) for pair in span.items()] and None


def _all(*changes: Callable[[Response], None]) -> Callable[[Response], None]:
    return lambda wire: [change(wire) for change in changes] and None


LIES: dict[str, tuple[str, Callable[[Response], None]]] = {
    "no outcome": ("an unknown outcome", lambda wire: wire.ClearField("outcome")),
    "new outcome": ("an unknown outcome", lambda wire: setattr(wire, "outcome", 9)),
    "no match": ("without its match", lambda wire: wire.ClearField("match")),
    "no id": ("without an id", _change(donor_id="")),
    "no owner": ("without an id", lambda wire: wire.match.ClearField("owner")),
    "no medium": ("an unknown medium", _change(medium=0)),
    "no tier": ("an unknown tier", _change(tier=0)),
    "new tier": ("an unknown tier", _change(tier=9)),
    "no policy": ("an unknown cache policy", _change(cache_policy=0)),
    "similarity": ("outside 0 to 1", _change(similarity=1.5)),
    "nan": ("outside 0 to 1", _change(reuse_ratio=float("nan"))),
    "no lease": ("neither or both", lambda wire: wire.ClearField("lease")),
    "both": ("neither or both", lambda wire: setattr(wire, "lease_refusal", 1)),
    "lease id": ("a lease id", lambda wire: setattr(wire.lease, "id", b"x" * 129)),
    "lease ended": ("already ended", lambda wire: setattr(wire.lease, "ttl_ms", 0)),
    "worse tier": ("worse than asked", _change(tier=3, cache_policy=3)),
    "poison": ("does not allow", _change(cache_policy=1)),
    "nothing": ("or none", _change(reusable_prefix_tokens=0)),
    "too much": ("over the prompt", _change(reusable_prefix_tokens=900, captured_tokens=950)),
    "not captured": ("has captured", _change(captured_tokens=249)),
    "exact elsewhere": ("an exact tier at", _change(tier=1)),
    "prefix of spans": ("without a prefix", lambda wire: setattr(wire, "outcome", 2)),
    "no span": ("without a span", lambda wire: wire.match.ClearField("spans")),
    "empty span": ("outside the prompt", _span(0, length=0)),
    "span before": ("outside the prompt", _span(0, target_start=99)),
    "span beyond": ("outside the prompt", _span(1, target_start=951)),
    "span of nothing": ("outside the prompt", _span(1, donor_start=201)),
    "exact span": ("an exact span at", _span(0, tier=1)),
    "target overlap": ("overlap", _span(1, target_start=299)),
    "donor overlap": ("overlap", _all(_span(1, donor_start=1), _change(captured_tokens=251))),
    "order": ("overlap", _all(_span(0, target_start=500), _span(1, target_start=400))),
    "silent miss": ("an unknown reason", lambda wire: setattr(wire, "outcome", 3)),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_lie_is_not_believed(lie: str) -> None:
    says, change = LIES[lie]
    wire = truth()
    change(wire)
    with pytest.raises(Contradiction, match=says):
        read(wire)


def test_an_asynchronous_load_may_bring_the_whole_prompt() -> None:
    wire = truth()
    _change(reusable_prefix_tokens=900, captured_tokens=950)(wire)
    _span(0, length=900)(wire)
    del wire.match.spans[1]
    whole = Asked(1000, 100, asynchronous_load=True, minimum_tier="verified")
    assert answers.donor(wire, whole, 0.0).reusable_prefix_tokens == 900


def test_a_miss_lists_its_neighbours() -> None:
    near = donors_pb2.Neighbour(
        donor_id="d",
        owner=common_pb2.Owner(worker_id="w", data_parallel_rank=2),
        discovery="DISCOVERY_SKETCH",
        score=0.75,
        quality=donors_pb2.QualitySignals(facts_differ=True),
    )
    wire = Response(outcome="FIND_OUTCOME_MISS", reason="FALLBACK_REASON_PROVIDER_MISS")
    wire.neighbours.append(near)
    expected = answers.Neighbour("d", answers.Owner("w", 2), "sketch", 0.75, True)
    assert read(wire) == answers.Miss("provider_miss", neighbours=(expected,))


def manifest() -> Manifest:
    return Manifest(
        block_indices=[0, 3, 9],
        total_blocks=10,
        effective_k=3,
        provenance="MANIFEST_PROVENANCE_PRIOR",
        lease=common_pb2.Lease(id=b"lease", ttl_ms=1000),
    )


def test_a_manifest_is_believed() -> None:
    assert answers.manifest(manifest(), 0.0).block_indices == (0, 3, 9)


def _per_head(wire: Manifest, blocks: list[int]) -> None:
    wire.per_head.layers, wire.per_head.kv_heads = 2, 1
    wire.per_head.block_indices[:] = blocks


MANIFEST_LIES: dict[str, tuple[str, Callable[[Manifest], Any]]] = {
    "no lease": ("without a lease", lambda wire: wire.ClearField("lease")),
    "no provenance": ("an unknown provenance", lambda wire: wire.ClearField("provenance")),
    "length": ("not its effective_k", lambda wire: setattr(wire, "effective_k", 2)),
    "empty": ("not its effective_k", lambda wire: wire.ClearField("block_indices")),
    "none": ("not its effective_k", lambda wire: setattr(wire, "effective_k", 0)),
    "beyond": ("beyond total_blocks", lambda wire: setattr(wire, "total_blocks", 9)),
    "order": ("out of order", lambda wire: wire.block_indices.__setitem__(0, 5)),
    "twice": ("out of order", lambda wire: wire.block_indices.__setitem__(0, 3)),
    "both": ("both per head", lambda wire: _per_head(wire, [1, 2, 3, 4, 5, 6])),
}


@pytest.mark.parametrize("lie", MANIFEST_LIES)
def test_a_lying_manifest_is_not_believed(lie: str) -> None:
    says, change = MANIFEST_LIES[lie]
    wire = manifest()
    change(wire)
    with pytest.raises(Contradiction, match=says):
        answers.manifest(wire, 0.0)


def test_each_head_has_its_own_order() -> None:
    wire = manifest()
    wire.ClearField("block_indices")
    _per_head(wire, [4, 5, 6, 1, 2, 3])
    assert answers.manifest(wire, 0.0).heads == (2, 1)
    _per_head(wire, [4, 5, 6, 3, 2, 1])
    with pytest.raises(Contradiction, match="out of order"):
        answers.manifest(wire, 0.0)
