"""The calls: what is sent for each, and what its answer becomes. No network here."""

from __future__ import annotations

import dataclasses
import os
import pathlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, NamedTuple, TypedDict, TypeVar

import numpy as np
import numpy.typing as npt
from google.protobuf.message import Message

from kvatlas import answers
from kvatlas.answers import Asked, Found, Manifest, Miss, Owner, Workers
from kvatlas.errors import InvalidRequest
from kvatlas.namespace import Namespace, selector
from kvatlas.v1 import (
    admin_pb2,
    common_pb2,
    donors_pb2,
    events_pb2,
    leases_pb2,
    routing_pb2,
)

TOKENS_MAX = 1_048_576
# Of an upload; the server takes up to 1 MiB.
CHUNK_BYTES = 1 << 20

TokenArray = npt.NDArray[Any]
_U32_MAX = 2**32 - 1
_Answer = TypeVar("_Answer")


class Method(NamedTuple):
    """A call of the service: its path, and what reads its answer."""

    path: str
    parse: Callable[[bytes], Any]


FIND_DONOR = Method("/kvatlas.v1.Donors/FindDonor", donors_pb2.FindDonorResponse.FromString)
ANNOUNCE_OWNER = Method(
    "/kvatlas.v1.Donors/AnnounceOwner", donors_pb2.AnnounceOwnerResponse.FromString
)
REGISTER_DONOR = Method(
    "/kvatlas.v1.Donors/RegisterDonor", donors_pb2.RegisterDonorResponse.FromString
)
REMOVE_DONORS = Method(
    "/kvatlas.v1.Donors/RemoveDonors", donors_pb2.RemoveDonorsResponse.FromString
)
REPORT_REUSE = Method("/kvatlas.v1.Donors/ReportReuse", donors_pb2.ReportReuseResponse.FromString)
GET_MANIFEST = Method("/kvatlas.v1.Routing/GetManifest", routing_pb2.GetManifestResponse.FromString)
PUT_PRIOR = Method("/kvatlas.v1.Routing/PutPrior", routing_pb2.PutPriorResponse.FromString)
PUT_QUERY = Method("/kvatlas.v1.Routing/PutQuery", routing_pb2.PutQueryResponse.FromString)
VALIDATE = Method("/kvatlas.v1.Leases/Validate", leases_pb2.ValidateResponse.FromString)
RENEW = Method("/kvatlas.v1.Leases/Renew", leases_pb2.RenewResponse.FromString)
RELEASE = Method("/kvatlas.v1.Leases/Release", leases_pb2.ReleaseResponse.FromString)
FIND_WORKERS = Method("/kvatlas.v1.Events/FindWorkers", events_pb2.FindWorkersResponse.FromString)
FINISH_REQUESTS = Method(
    "/kvatlas.v1.Events/FinishRequests", events_pb2.FinishRequestsResponse.FromString
)
GET_STATUS = Method("/kvatlas.v1.Admin/GetStatus", admin_pb2.GetStatusResponse.FromString)
SET_MODE = Method("/kvatlas.v1.Admin/SetMode", admin_pb2.SetModeResponse.FromString)


@dataclasses.dataclass(frozen=True)
class Ask(Generic[_Answer]):
    """A call ready to be made."""

    method: Method
    request: Message
    # Makes the answer of the response and of the time, by time.monotonic(), it was asked for.
    accept: Callable[[Any, float], _Answer]

    def answer(self, response: bytes, sent_s: float) -> _Answer:
        """The answer that came, read and checked."""
        return self.accept(self.method.parse(response), sent_s)


@dataclasses.dataclass(frozen=True)
class Gates:
    """Thresholds of a look-up; None: the namespace's or the server's."""

    min_prompt_tokens: int | None = None
    min_reuse_tokens: int | None = None
    min_similarity: float | None = None
    min_reuse_ratio: float | None = None
    exact_prefix_skip_ratio: float | None = None

    def to_proto(self) -> donors_pb2.Gates:
        """The message that they are sent as."""
        return donors_pb2.Gates(**dataclasses.asdict(self))


class FindOptions(TypedDict, total=False):
    """What a donor look-up may say besides the prompt and the namespace."""

    # Tokens from the start that the engine's own prefix cache covers.
    exact_prefix_tokens: int
    # A look-up repeated under it returns the same answer and lease. Empty: never repeated.
    request_id: str
    # Who will hold the lease; without it there is none.
    holder: str
    # Stores that the recipient can read; a donor elsewhere is discovery only.
    readable_store_ids: Sequence[str]
    gates: Gates | None
    # The engine can use several spans that are not anchored at the boundary: lease those too.
    accept_spans: bool
    # The whole prompt may come from the load. Otherwise one token is left to compute.
    asynchronous_load: bool
    # The worst tier that may be nominated: "exact", "verified" (also when empty), "semantic".
    minimum_tier: str
    # In milliseconds; 0: the server's default.
    lease_ttl_ms: int
    # Adds the rejected candidates and why.
    explain: bool
    # For look-ups by meaning, where the operator has enabled them.
    text: str
    # Also list the best spans over up to this many donors, at most 8.
    segment_donors_max: int
    # List up to this many neighbours by vocabulary or meaning on a miss, at most 5.
    neighbours_max: int


class ManifestOptions(TypedDict, total=False):
    """What a manifest look-up may say besides the prefix and k."""

    query_hash: str | None
    # Empty: the newest stored prior.
    algorithm: str
    # Empty: top-k.
    policy: str
    # Blocks of the caller's cartridge; 0: as many as the prior has.
    total_blocks: int
    # Used when the prefix is unknown; needs `total_blocks`.
    fallback_policy: str
    # When online scoring cannot serve the request: answer from the stored prior.
    allow_fallback: bool
    # The request's own query, for online scoring; else what `put_query` kept under `query_hash`.
    query: routing_pb2.QueryVectors | None
    query_tokens: routing_pb2.QueryTokens | None
    # In milliseconds; 0: the server's default.
    lease_ttl_ms: int


class ReuseDetails(TypedDict, total=False):
    """What a report may say of a nomination besides its request and its end."""

    # Why it was not used, where it was not: a word of the closed vocabulary.
    reason: str
    holder: str
    # Released by the report when it is held by `holder`.
    lease_id: bytes
    tokens_loaded: int
    invalid_blocks: int


class PriorOptions(TypedDict, total=False):
    """What an upload may say of a prior besides its prefix."""

    # Empty: it serves every query.
    query_hash: str
    # Empty: what the file says, else "unknown".
    algorithm: str
    # What engines should recompute after injection, such as ("xa25", 0.25).
    repair: tuple[str, float] | None


@dataclasses.dataclass(frozen=True)
class Donor:
    """A prompt whose KV lies in an engine."""

    # Unique in its namespace.
    donor_id: str
    namespace: Namespace | str
    owner: Owner
    # The owner's when the KV was computed: its start time in milliseconds since 1970.
    owner_generation: int
    # Not shown: prompts stay out of logs.
    tokens: TokenArray = dataclasses.field(repr=False)
    # Tokens from the start whose KV can be read.
    captured_tokens: int
    # "device", "host" or "disk".
    medium: str
    store_id: str
    # Of those captured, how many came from full prefill or exact loads; 0: not said.
    exact_tokens: int = 0
    # The request that the prompt came from: its own look-ups never nominate it.
    source_request_id: str = ""
    # The engine's hashes of the captured blocks, in order; for donors on the device.
    block_hashes: tuple[bytes, ...] = ()
    # Kept only where the operator has enabled text.
    text: str = dataclasses.field(default="", repr=False)


@dataclasses.dataclass(frozen=True)
class OwnerState:
    """What the server knows of an owner that announced itself."""

    # The service's restart counter.
    epoch: int
    # Donors of older generations that went.
    dropped_donors: int
    # Donors of this owner and generation that the server holds.
    held_donors: int
    # To be announced again before this many milliseconds have passed.
    ttl_ms: int


@dataclasses.dataclass(frozen=True)
class Registration:
    """What became of a donor."""

    # "added", "replaced", "covered" or "nothing_captured"; the last two are not kept.
    admission: str
    namespace_id: str
    # For "covered": the donor that covers it.
    covered_by: str
    # Donors that made room.
    evicted: int


@dataclasses.dataclass(frozen=True)
class StoredPrior:
    """A prior that is on the server's disk."""

    algorithm: str
    # New with every put.
    generation: int
    total_blocks: int
    # A prior under the same key was there before.
    replaced: bool


@dataclasses.dataclass(frozen=True)
class Status:
    """How the server stands."""

    version: str
    epoch: int
    mode: str
    donors: int
    priors: int
    namespaces: int
    leases_held: int
    owners_live: int


def pack(tokens: TokenArray) -> bytes:
    """Token ids as they travel, little-endian u32: one copy, no walk. Raises InvalidRequest."""
    array = np.asanyarray(tokens)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise InvalidRequest("tokens are a one-dimensional array of integers")
    if not 1 <= array.size <= TOKENS_MAX:
        raise InvalidRequest(f"tokens are 1 to {TOKENS_MAX}")
    if array.dtype.kind == "i" and array.min() < 0:
        raise InvalidRequest("token ids are 0 to 4294967295")
    if array.dtype.itemsize > 4 and array.max() > _U32_MAX:
        raise InvalidRequest("token ids are 0 to 4294967295")
    return np.ascontiguousarray(array, "<u4").tobytes()


def find_donor(
    tokens: TokenArray, namespace: Namespace | str, options: FindOptions
) -> Ask[Found | Miss] | Miss:
    """A donor look-up, or the miss that it is without asking."""
    if isinstance(namespace, Namespace) and namespace.problem:
        return Miss("namespace_mismatch", namespace.problem)
    try:
        request, asked = _find_request(tokens, namespace, **options)
    except (TypeError, ValueError) as error:
        return Miss("unsupported_request", _told(error))
    return Ask(FIND_DONOR, request, lambda wire, sent: answers.donor(wire, asked, sent))


def _find_request(
    tokens: TokenArray,
    namespace: Namespace | str,
    *,
    exact_prefix_tokens: int = 0,
    minimum_tier: str = "",
    asynchronous_load: bool = False,
    gates: Gates | None = None,
    **others: Any,
) -> tuple[donors_pb2.FindDonorRequest, Asked]:
    packed = pack(tokens)
    prompt = len(packed) // 4
    if not 0 <= exact_prefix_tokens <= prompt:
        raise InvalidRequest("exact_prefix_tokens are at most the tokens")
    tier = minimum_tier or "verified"
    request = donors_pb2.FindDonorRequest(
        tokens=donors_pb2.Tokens(packed=packed),
        namespace=selector(namespace),
        exact_prefix_tokens=exact_prefix_tokens,
        minimum_tier=_number(answers.TIERS, tier, "tier"),
        asynchronous_load=asynchronous_load,
        gates=None if gates is None else gates.to_proto(),
        **others,
    )
    return request, Asked(prompt, exact_prefix_tokens, asynchronous_load, tier)


def get_manifest(prefix_hash: str, k: int, options: ManifestOptions) -> Ask[Manifest | Miss] | Miss:
    """A manifest look-up, or the miss that it is without asking."""
    try:
        request = routing_pb2.GetManifestRequest(prefix_hash=prefix_hash, k=k, **options)
    except (TypeError, ValueError) as error:
        return Miss("unsupported_request", _told(error))
    return Ask(GET_MANIFEST, request, answers.manifest)


def put_query(query_hash: str, query: routing_pb2.QueryVectors, ttl_ms: int) -> Ask[int]:
    """When it will be forgotten, in milliseconds since 1970."""
    request = routing_pb2.PutQueryRequest(query_hash=query_hash, query=query, ttl_ms=ttl_ms)
    return Ask(PUT_QUERY, request, lambda wire, _: int(wire.expires_unix_ms))


def find_workers(
    tokens: TokenArray, namespace: Namespace | str | None, pick: bool, request_id: str
) -> Ask[Workers | Miss] | Miss:
    """Which worker holds the prompt, or the miss that it is without asking."""
    if isinstance(namespace, Namespace) and namespace.problem:
        return Miss("namespace_mismatch", namespace.problem)
    try:
        request = events_pb2.FindWorkersRequest(
            tokens=donors_pb2.Tokens(packed=pack(tokens)),
            namespace=None if namespace is None else selector(namespace),
            pick=pick,
            request_id=request_id,
        )
    except (TypeError, ValueError) as error:
        return Miss("unsupported_request", _told(error))
    return Ask(FIND_WORKERS, request, lambda wire, _: answers.workers(wire))


def validate(lease_id: bytes, holder: str) -> Ask[tuple[str, int]]:
    """What a lease is now, and what is left of it in milliseconds."""
    request = leases_pb2.ValidateRequest(lease_id=lease_id, holder=holder)
    return Ask(VALIDATE, request, lambda wire, _: (_lease_state(wire), wire.remaining_ms))


def renew(lease_id: bytes, holder: str, ttl_ms: int) -> Ask[str]:
    """The lease's state; it was renewed only if that is "valid"."""
    request = leases_pb2.RenewRequest(lease_id=lease_id, holder=holder, ttl_ms=ttl_ms)
    return Ask(RENEW, request, lambda wire, _: _lease_state(wire))


def release(lease_id: bytes, holder: str) -> Ask[bool]:
    """Whether this call ended the lease."""
    request = leases_pb2.ReleaseRequest(lease_id=lease_id, holder=holder)
    return Ask(RELEASE, request, lambda wire, _: bool(wire.released))


def announce_owner(owner: Owner, generation: int, ttl_ms: int) -> Ask[OwnerState]:
    """Says that an owner lives."""
    request = donors_pb2.AnnounceOwnerRequest(
        owner=_owner(owner), generation=generation, ttl_ms=ttl_ms
    )
    return Ask(
        ANNOUNCE_OWNER,
        request,
        lambda wire, _: OwnerState(wire.epoch, wire.dropped_donors, wire.held_donors, wire.ttl_ms),
    )


def register_donor(donor: Donor) -> Ask[Registration]:
    """Raises InvalidRequest."""
    packed = pack(donor.tokens)
    if not 0 <= donor.exact_tokens <= donor.captured_tokens <= len(packed) // 4:
        raise InvalidRequest(
            "exact_tokens are at most captured_tokens, and these at most the tokens"
        )
    request = donors_pb2.RegisterDonorRequest(
        donor_id=donor.donor_id,
        namespace=selector(donor.namespace),
        owner=_owner(donor.owner),
        owner_generation=donor.owner_generation,
        tokens=donors_pb2.Tokens(packed=packed),
        captured_tokens=donor.captured_tokens,
        exact_tokens=donor.exact_tokens,
        medium=_number(answers.MEDIUMS, donor.medium, "medium"),
        store_id=donor.store_id,
        source_request_id=donor.source_request_id,
        block_hashes=donor.block_hashes,
        text=donor.text,
    )
    return Ask(
        REGISTER_DONOR,
        request,
        lambda wire, _: Registration(
            answers.ADMISSIONS.get(wire.admission, ""),
            wire.namespace_id,
            wire.covered_by,
            wire.evicted,
        ),
    )


def remove_donors(
    donor_ids: Sequence[str] | None, namespace: Namespace | str | None, owner: Owner | None
) -> Ask[int]:
    """By ids of a namespace, by namespace, or by owner. Else InvalidRequest."""
    if owner is not None and donor_ids is None and namespace is None:
        request = donors_pb2.RemoveDonorsRequest(owner=_owner(owner))
    elif owner is None and namespace is not None and donor_ids is None:
        request = donors_pb2.RemoveDonorsRequest(namespace=selector(namespace))
    elif owner is None and namespace is not None and donor_ids is not None:
        ids = donors_pb2.DonorIds(namespace=selector(namespace), donor_ids=donor_ids)
        request = donors_pb2.RemoveDonorsRequest(donors=ids)
    else:
        raise InvalidRequest("give ids and a namespace, a namespace, or an owner")
    return Ask(REMOVE_DONORS, request, lambda wire, _: int(wire.removed))


def report_reuse(
    request_id: str,
    provenance: str,
    *,
    reason: str = "",
    holder: str = "",
    lease_id: bytes = b"",
    tokens_loaded: int = 0,
    invalid_blocks: int = 0,
) -> Ask[bool]:
    """What became of a nomination; whether that ended its lease."""
    request = donors_pb2.ReportReuseRequest(
        request_id=request_id,
        holder=holder,
        lease_id=lease_id,
        provenance=_number(answers.PROVENANCES, provenance, "provenance"),
        reason=_number(answers.REASONS, reason, "reason") if reason else None,
        tokens_loaded=tokens_loaded,
        invalid_blocks=invalid_blocks,
    )
    return Ask(REPORT_REUSE, request, lambda wire, _: bool(wire.released))


def finish_requests(request_ids: Sequence[str]) -> Ask[int]:
    """How many of them were in flight."""
    request = events_pb2.FinishRequestsRequest(request_ids=request_ids)
    return Ask(FINISH_REQUESTS, request, lambda wire, _: int(wire.finished))


def set_mode(mode: str, namespace: Namespace | str | None, gates: Gates | None) -> Ask[str]:
    """The mode that applies now. Empty, with a namespace: it follows the server again."""
    request = admin_pb2.SetModeRequest(
        namespace=None if namespace is None else selector(namespace),
        # The command line spells them with hyphens.
        mode=_number(answers.MODES, mode.replace("-", "_"), "mode") if mode else None,
        gates=None if gates is None else gates.to_proto(),
    )
    return Ask(SET_MODE, request, lambda wire, _: answers.MODES.get(wire.mode, ""))


def status() -> Ask[Status]:
    """How the server stands."""
    return Ask(
        GET_STATUS,
        admin_pb2.GetStatusRequest(),
        lambda wire, _: Status(
            version=wire.version,
            epoch=wire.epoch,
            mode=answers.MODES.get(wire.mode, ""),
            donors=wire.donors,
            priors=wire.priors,
            namespaces=wire.namespaces,
            leases_held=wire.leases_held,
            owners_live=wire.owners_live,
        ),
    )


def prior_parts(
    prior: bytes | str | os.PathLike[str],
    prefix_hash: str,
    *,
    query_hash: str = "",
    algorithm: str = "",
    repair: tuple[str, float] | None = None,
) -> Iterator[bytes]:
    """The messages of an upload: a header, then the file in chunks, read as they are sent."""
    size = len(prior) if isinstance(prior, bytes) else pathlib.Path(prior).stat().st_size
    header = routing_pb2.PutPriorHeader(
        prefix_hash=prefix_hash, query_hash=query_hash, algorithm=algorithm, size_bytes=size
    )
    if repair is not None:
        header.repair.name, header.repair.ratio = repair
    return _parts(header, prior)


def stored_prior(response: bytes) -> StoredPrior:
    """What an upload led to."""
    wire = PUT_PRIOR.parse(response)
    prior = wire.prior
    return StoredPrior(prior.algorithm, prior.generation, prior.total_blocks, wire.replaced)


def _parts(
    header: routing_pb2.PutPriorHeader, prior: bytes | str | os.PathLike[str]
) -> Iterator[bytes]:
    yield routing_pb2.PutPriorRequest(header=header).SerializeToString()
    if isinstance(prior, bytes):
        for start in range(0, len(prior), CHUNK_BYTES):
            chunk = prior[start : start + CHUNK_BYTES]
            yield routing_pb2.PutPriorRequest(chunk=chunk).SerializeToString()
        return
    with pathlib.Path(prior).open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            yield routing_pb2.PutPriorRequest(chunk=chunk).SerializeToString()


def _owner(owner: Owner) -> common_pb2.Owner:
    return common_pb2.Owner(worker_id=owner.worker_id, data_parallel_rank=owner.dp_rank)


def _lease_state(wire: Any) -> str:
    return answers.LEASE_STATES.get(wire.state, "stale")


def _number(words: dict[int, str], word: str, what: str) -> Any:
    for number, known in words.items():
        if known == word:
            return number
    raise InvalidRequest(f"{what} is one of {', '.join(words.values())}")


def _told(error: Exception) -> str:
    """Our own words; others' may repeat a value, so of theirs only the type."""
    return str(error) if isinstance(error, InvalidRequest) else type(error).__name__
