"""What the server answers, checked: what cannot be true is not believed."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Mapping
from typing import Any

from google.protobuf.internal.enum_type_wrapper import EnumTypeWrapper

from kvatlas.v1 import common_pb2, donors_pb2, events_pb2, leases_pb2, routing_pb2

LEASE_ID_BYTES_MAX = 128


class Contradiction(ValueError):
    """An answer that contradicts its request or itself. Says how, without content."""


@dataclasses.dataclass(frozen=True)
class Miss:
    """Nothing to use, and why: compute as usual."""

    # A word of the closed vocabulary (docs/engines.md lists them).
    reason: str
    # The reason in numbers or words. Never prompt content.
    detail: str = ""
    # Empty when the server did not answer, or not for donors.
    namespace_id: str = ""
    mode: str = ""
    # With `explain`.
    rejected: tuple[Rejected, ...] = ()
    # With `neighbours_max`: the nearest first.
    neighbours: tuple[Neighbour, ...] = ()
    # With `segment_donors_max`.
    segments: tuple[Segment, ...] = ()
    timings: Mapping[str, float] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Owner:
    """The engine worker that holds a donor's KV."""

    worker_id: str
    dp_rank: int = 0


@dataclasses.dataclass(frozen=True)
class Span:
    """A run of token-identical tokens."""

    donor_start: int
    target_start: int
    length: int
    tier: str


@dataclasses.dataclass(frozen=True)
class Lease:
    """The right to use an answer. Validate it before anything is materialized."""

    id: bytes
    ttl_ms: int
    # By time.monotonic(), counted from when the request was sent, so never later than the server's.
    deadline_monotonic_s: float


@dataclasses.dataclass(frozen=True)
class Rejected:
    """A candidate that did not pass, with `explain`."""

    donor_id: str
    reason: str
    detail: str
    verified_tokens: int
    reusable_prefix_tokens: int


@dataclasses.dataclass(frozen=True)
class Neighbour:
    """A donor near in vocabulary or meaning: to be looked at, never to be loaded."""

    donor_id: str
    owner: Owner
    # "sketch", "text" or "announced".
    discovery: str
    # A cosine, -1 to 1.
    score: float
    facts_differ: bool


@dataclasses.dataclass(frozen=True)
class Segment:
    """A span that names its donor, with `segment_donors_max`."""

    donor_id: str
    owner: Owner
    span: Span


@dataclasses.dataclass(frozen=True)
class Found:
    """A donor to borrow from. Its spans lie within the prompt and the donor, apart from each other,
    and its tier allows what its cache policy says."""

    # "prefix": reusable tokens continue the exact prefix. "spans": nothing at the boundary.
    outcome: str
    # None, or "not_prefix_anchored".
    reason: str | None
    donor_id: str
    owner: Owner
    owner_generation: int
    # "device", "host" or "disk".
    medium: str
    store_id: str
    # "exact", "verified" or "semantic".
    tier: str
    # "exact_commit", "request_only" or "discovery_only".
    cache_policy: str
    # Additional tokens beyond the exact prefix; 0 unless the outcome is "prefix".
    reusable_prefix_tokens: int
    # Where in the donor they begin.
    donor_offset: int
    # In target order.
    spans: tuple[Span, ...]
    # Verified tokens / prompt tokens beyond the exact prefix.
    similarity: float
    # Tokens reusable under the outcome / prompt tokens.
    reuse_ratio: float
    captured_tokens: int
    # Without it nothing may be materialized, and `lease_refusal` says why.
    lease: Lease | None
    lease_refusal: str | None
    namespace_id: str
    mode: str
    # The texts differ in a number, a name, a negation or an identifier.
    facts_differ: bool
    # Microseconds by stage, as the server took them.
    timings: Mapping[str, float]
    rejected: tuple[Rejected, ...] = ()
    # In target order, over as few donors as cover most of the prompt.
    segments: tuple[Segment, ...] = ()
    # The remembered answer to an earlier look-up under the same request id.
    repeated: bool = False


@dataclasses.dataclass(frozen=True)
class Asked:
    """The part of a donor look-up that its answer must agree with."""

    prompt: int
    exact_prefix: int
    asynchronous_load: bool
    minimum_tier: str


@dataclasses.dataclass(frozen=True)
class Repair:
    """What the engine should recompute after injection, such as "xa25" with 0.25."""

    name: str
    ratio: float


@dataclasses.dataclass(frozen=True)
class Manifest:
    """The blocks to read: ascending, distinct, each below `total_blocks`."""

    # Of all heads alike; empty for the policy per-head.
    block_indices: tuple[int, ...]
    total_blocks: int
    # How many blocks there are (per head, for per-head).
    effective_k: int
    # Empty when no prior took part.
    algorithm: str
    # In its canonical spelling.
    policy: str
    # 0 when no prior took part.
    prior_generation: int
    repair: Repair | None
    lease: Lease
    # "prior", "online" or "policy_only".
    provenance: str
    # Empty: exactly what was asked for.
    reason: str
    # For per-head: (layers, kv_heads) and layers * kv_heads * effective_k blocks, layer-major.
    heads: tuple[int, int] | None = None
    head_block_indices: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True)
class WorkerMatch:
    """How much of a prompt one worker holds."""

    owner: Owner
    device_blocks: int
    device_tokens: int
    lower_tier_blocks: int
    lower_tier_tokens: int
    # "exact", "degraded" or "stale".
    source_state: str
    load_blocks: int
    # 0 where the worker holds nothing of the prompt.
    block_size: int


@dataclasses.dataclass(frozen=True)
class Workers:
    """Every worker of the namespace, the one that holds most first."""

    workers: tuple[WorkerMatch, ...]
    picked: Owner | None
    charged_blocks: int
    in_flight: bool


def _words(enum: EnumTypeWrapper, prefix: str) -> dict[int, str]:
    return {number: name[len(prefix) :].lower() for name, number in enum.items() if number}


REASONS = _words(common_pb2.FallbackReason, "FALLBACK_REASON_")
TIERS = _words(common_pb2.Tier, "TIER_")
CACHE_POLICIES = _words(common_pb2.CachePolicy, "CACHE_POLICY_")
MEDIUMS = _words(common_pb2.Medium, "MEDIUM_")
MODES = _words(common_pb2.Mode, "MODE_")
OUTCOMES = _words(donors_pb2.FindOutcome, "FIND_OUTCOME_")
DISCOVERIES = _words(donors_pb2.Discovery, "DISCOVERY_")
LEASE_REFUSALS = _words(donors_pb2.LeaseRefusal, "LEASE_REFUSAL_")
ADMISSIONS = _words(donors_pb2.Admission, "ADMISSION_")
PROVENANCES = _words(donors_pb2.ReuseProvenance, "REUSE_PROVENANCE_")
LEASE_STATES = _words(leases_pb2.LeaseState, "LEASE_STATE_")
MANIFEST_PROVENANCES = _words(routing_pb2.ManifestProvenance, "MANIFEST_PROVENANCE_")
MANIFEST_REASONS = _words(routing_pb2.ManifestReason, "MANIFEST_REASON_")
SOURCE_STATES = _words(events_pb2.SourceState, "SOURCE_STATE_")

# What each tier allows; a policy that allows more would poison the engine's exact cache.
_POLICIES_OF_TIER = {
    "exact": {"exact_commit", "request_only", "discovery_only"},
    "verified": {"request_only", "discovery_only"},
    "semantic": {"discovery_only"},
}
_TIER_RANK = {"exact": 0, "verified": 1, "semantic": 2}


def donor(wire: donors_pb2.FindDonorResponse, asked: Asked, sent_s: float) -> Found | Miss:
    """A donor look-up's answer. Contradiction: it cannot be used."""
    outcome = _word(OUTCOMES, wire.outcome, "outcome")
    if outcome == "miss":
        return Miss(
            reason=_word(REASONS, wire.reason, "reason"),
            detail=wire.detail,
            namespace_id=wire.namespace_id,
            mode=MODES.get(wire.mode, ""),
            rejected=_rejected(wire),
            neighbours=tuple(_neighbour(one) for one in wire.neighbours),
            segments=_segments(wire),
            timings=_timings(wire),
        )
    found = _found(wire, outcome, sent_s)
    _check_tier(found, asked)
    _check_prefix(found, asked)
    _check_spans(found, asked)
    return found


def lease(wire: common_pb2.Lease, sent_s: float) -> Lease:
    """A lease, its deadline by this side's clock."""
    if not 1 <= len(wire.id) <= LEASE_ID_BYTES_MAX:
        raise Contradiction("a lease id of 0 or more than 128 bytes")
    if wire.ttl_ms == 0:
        raise Contradiction("a lease that has already ended")
    return Lease(wire.id, wire.ttl_ms, sent_s + wire.ttl_ms / 1000)


def manifest(wire: routing_pb2.GetManifestResponse, sent_s: float) -> Manifest:
    """A manifest. Contradiction: it cannot be used."""
    if not wire.HasField("lease"):
        raise Contradiction("a manifest without a lease")
    per_head = wire.per_head if wire.HasField("per_head") else None
    if per_head is not None and wire.block_indices:
        raise Contradiction("blocks both per head and for all")
    answer = Manifest(
        block_indices=tuple(wire.block_indices),
        total_blocks=wire.total_blocks,
        effective_k=wire.effective_k,
        algorithm=wire.algorithm,
        policy=wire.policy,
        prior_generation=wire.prior_generation,
        repair=Repair(wire.repair.name, wire.repair.ratio) if wire.HasField("repair") else None,
        lease=lease(wire.lease, sent_s),
        provenance=_word(MANIFEST_PROVENANCES, wire.provenance, "provenance"),
        reason=MANIFEST_REASONS.get(wire.reason, ""),
        heads=None if per_head is None else (per_head.layers, per_head.kv_heads),
        head_block_indices=() if per_head is None else tuple(per_head.block_indices),
    )
    _check_blocks(answer)
    return answer


def workers(wire: events_pb2.FindWorkersResponse) -> Workers:
    """How much of a prompt each worker holds."""
    return Workers(
        workers=tuple(
            WorkerMatch(
                owner=_owner(match.owner),
                device_blocks=match.device_blocks,
                device_tokens=match.device_tokens,
                lower_tier_blocks=match.lower_tier_blocks,
                lower_tier_tokens=match.lower_tier_tokens,
                source_state=_word(SOURCE_STATES, match.source_state, "source state"),
                load_blocks=match.load_blocks,
                block_size=match.block_size,
            )
            for match in wire.workers
        ),
        picked=_owner(wire.picked) if wire.HasField("picked") else None,
        charged_blocks=wire.charged_blocks,
        in_flight=wire.in_flight,
    )


def _word(words: dict[int, str], number: int, what: str) -> str:
    try:
        return words[number]
    except KeyError:
        raise Contradiction(f"an unknown {what}") from None


def _owner(wire: common_pb2.Owner) -> Owner:
    return Owner(wire.worker_id, wire.data_parallel_rank)


def _span(wire: donors_pb2.Span) -> Span:
    tier = _word(TIERS, wire.tier, "tier")
    return Span(wire.donor_start, wire.target_start, wire.length, tier)


def _neighbour(wire: donors_pb2.Neighbour) -> Neighbour:
    return Neighbour(
        donor_id=wire.donor_id,
        owner=_owner(wire.owner),
        discovery=DISCOVERIES.get(wire.discovery, ""),
        score=wire.score,
        facts_differ=wire.quality.facts_differ,
    )


def _segments(wire: donors_pb2.FindDonorResponse) -> tuple[Segment, ...]:
    return tuple(Segment(one.donor_id, _owner(one.owner), _span(one.span)) for one in wire.segments)


def _timings(wire: donors_pb2.FindDonorResponse) -> dict[str, float]:
    return {field.name: value for field, value in wire.timings.ListFields()}


def _rejected(wire: donors_pb2.FindDonorResponse) -> tuple[Rejected, ...]:
    return tuple(
        Rejected(
            donor_id=candidate.donor_id,
            reason=REASONS.get(candidate.reason, ""),
            detail=candidate.detail,
            verified_tokens=candidate.verified_tokens,
            reusable_prefix_tokens=candidate.reusable_prefix_tokens,
        )
        for candidate in wire.rejected
    )


def _found(wire: donors_pb2.FindDonorResponse, outcome: str, sent_s: float) -> Found:
    if not wire.HasField("match"):
        raise Contradiction("a hit without its match")
    match = wire.match
    if not match.donor_id or not match.HasField("owner"):
        raise Contradiction("a donor without an id or an owner")
    if not (0 <= match.similarity <= 1 and 0 <= match.reuse_ratio <= 1):
        raise Contradiction("a similarity or reuse ratio outside 0 to 1")
    refusal = LEASE_REFUSALS.get(wire.lease_refusal)
    if wire.HasField("lease") == (refusal is not None):
        raise Contradiction("neither or both of a lease and a refusal of it")
    return Found(
        outcome=outcome,
        reason=REASONS.get(wire.reason),
        donor_id=match.donor_id,
        owner=_owner(match.owner),
        owner_generation=match.owner_generation,
        medium=_word(MEDIUMS, match.medium, "medium"),
        store_id=match.store_id,
        tier=_word(TIERS, match.tier, "tier"),
        cache_policy=_word(CACHE_POLICIES, match.cache_policy, "cache policy"),
        reusable_prefix_tokens=match.reusable_prefix_tokens,
        donor_offset=match.donor_offset,
        spans=tuple(_span(span) for span in match.spans),
        similarity=match.similarity,
        reuse_ratio=match.reuse_ratio,
        captured_tokens=match.captured_tokens,
        lease=lease(wire.lease, sent_s) if refusal is None else None,
        lease_refusal=refusal,
        namespace_id=wire.namespace_id,
        mode=MODES.get(wire.mode, ""),
        facts_differ=match.quality.facts_differ,
        timings=_timings(wire),
        rejected=_rejected(wire),
        segments=_segments(wire),
        repeated=wire.repeated_answer,
    )


def _check_tier(found: Found, asked: Asked) -> None:
    if _TIER_RANK[found.tier] > _TIER_RANK[asked.minimum_tier]:
        raise Contradiction("a tier worse than asked for")
    if found.cache_policy not in _POLICIES_OF_TIER[found.tier]:
        raise Contradiction("a cache policy that its tier does not allow")


def _check_prefix(found: Found, asked: Asked) -> None:
    reusable = found.reusable_prefix_tokens
    if found.outcome == "spans":
        if reusable:
            raise Contradiction("reusable prefix tokens without a prefix")
        return
    left_to_compute = 0 if asked.asynchronous_load else 1
    if reusable == 0 or asked.exact_prefix + reusable + left_to_compute > asked.prompt:
        raise Contradiction("reusable tokens over the prompt's length, or none")
    if found.donor_offset + reusable > found.captured_tokens:
        raise Contradiction("reusable tokens over what the donor has captured")
    if found.tier == "exact" and found.donor_offset != asked.exact_prefix:
        raise Contradiction("an exact tier at another position")


def _check_spans(found: Found, asked: Asked) -> None:
    if not found.spans:
        raise Contradiction("a hit without a span")
    for span in found.spans:
        in_target = asked.exact_prefix <= span.target_start <= asked.prompt - span.length
        if not (
            span.length and in_target and span.donor_start + span.length <= found.captured_tokens
        ):
            raise Contradiction("a span outside the prompt or the donor")
        if span.tier == "exact" and span.donor_start != span.target_start:
            raise Contradiction("an exact span at another position")
    by_target = [(span.target_start, span.length) for span in found.spans]
    by_donor = sorted((span.donor_start, span.length) for span in found.spans)
    if not (_apart(by_target) and _apart(by_donor)):
        raise Contradiction("spans that overlap or are out of order")


def _apart(runs: list[tuple[int, int]]) -> bool:
    """Each (start, length) begins where the one before has ended, or later."""
    return all(start + length <= after for (start, length), (after, _) in itertools.pairwise(runs))


def _check_blocks(answer: Manifest) -> None:
    k, total = answer.effective_k, answer.total_blocks
    layers, heads = answer.heads or (1, 1)
    blocks = answer.head_block_indices if answer.heads else answer.block_indices
    if k == 0 or layers * heads == 0 or len(blocks) != layers * heads * k:
        raise Contradiction("a manifest whose length is not its effective_k")
    for start in range(0, len(blocks), k):
        head = blocks[start : start + k]
        if not _ascending(head) or head[-1] >= total:
            raise Contradiction("blocks out of order or beyond total_blocks")


def _ascending(numbers: Iterable[Any]) -> bool:
    return all(before < after for before, after in itertools.pairwise(numbers))
