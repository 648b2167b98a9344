from kvatlas.v1 import common_pb2 as _common_pb2
from kvatlas.v1 import routing_pb2 as _routing_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class FindOutcome(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FIND_OUTCOME_UNSPECIFIED: _ClassVar[FindOutcome]
    FIND_OUTCOME_PREFIX: _ClassVar[FindOutcome]
    FIND_OUTCOME_SPANS: _ClassVar[FindOutcome]
    FIND_OUTCOME_MISS: _ClassVar[FindOutcome]

class LeaseRefusal(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    LEASE_REFUSAL_UNSPECIFIED: _ClassVar[LeaseRefusal]
    LEASE_REFUSAL_DISCOVERY_ONLY: _ClassVar[LeaseRefusal]
    LEASE_REFUSAL_STORE_NOT_READABLE: _ClassVar[LeaseRefusal]
    LEASE_REFUSAL_SPANS_NOT_ACCEPTED: _ClassVar[LeaseRefusal]
    LEASE_REFUSAL_HOLDER_MISSING: _ClassVar[LeaseRefusal]

class NeighbourSearch(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    NEIGHBOUR_SEARCH_UNSPECIFIED: _ClassVar[NeighbourSearch]
    NEIGHBOUR_SEARCH_NOT_NEEDED: _ClassVar[NeighbourSearch]
    NEIGHBOUR_SEARCH_DONE: _ClassVar[NeighbourSearch]
    NEIGHBOUR_SEARCH_DISABLED: _ClassVar[NeighbourSearch]
    NEIGHBOUR_SEARCH_NO_TEXT: _ClassVar[NeighbourSearch]
    NEIGHBOUR_SEARCH_NOTHING_INDEXED: _ClassVar[NeighbourSearch]
    NEIGHBOUR_SEARCH_LATE: _ClassVar[NeighbourSearch]
    NEIGHBOUR_SEARCH_BUSY: _ClassVar[NeighbourSearch]
    NEIGHBOUR_SEARCH_FAILED: _ClassVar[NeighbourSearch]

class Discovery(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DISCOVERY_UNSPECIFIED: _ClassVar[Discovery]
    DISCOVERY_SEEDS: _ClassVar[Discovery]
    DISCOVERY_SKETCH: _ClassVar[Discovery]
    DISCOVERY_TEXT: _ClassVar[Discovery]
    DISCOVERY_ANNOUNCED: _ClassVar[Discovery]

class Admission(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ADMISSION_UNSPECIFIED: _ClassVar[Admission]
    ADMISSION_ADDED: _ClassVar[Admission]
    ADMISSION_REPLACED: _ClassVar[Admission]
    ADMISSION_COVERED: _ClassVar[Admission]
    ADMISSION_NOTHING_CAPTURED: _ClassVar[Admission]

class ReuseProvenance(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    REUSE_PROVENANCE_UNSPECIFIED: _ClassVar[ReuseProvenance]
    REUSE_PROVENANCE_EXACT_LOCAL_PREFIX_HIT: _ClassVar[ReuseProvenance]
    REUSE_PROVENANCE_EXACT_EXTERNAL_HIT: _ClassVar[ReuseProvenance]
    REUSE_PROVENANCE_REQUEST_ONLY_REUSE: _ClassVar[ReuseProvenance]
    REUSE_PROVENANCE_CANDIDATE_REJECTED: _ClassVar[ReuseProvenance]
    REUSE_PROVENANCE_FALLBACK_RECOMPUTE: _ClassVar[ReuseProvenance]
FIND_OUTCOME_UNSPECIFIED: FindOutcome
FIND_OUTCOME_PREFIX: FindOutcome
FIND_OUTCOME_SPANS: FindOutcome
FIND_OUTCOME_MISS: FindOutcome
LEASE_REFUSAL_UNSPECIFIED: LeaseRefusal
LEASE_REFUSAL_DISCOVERY_ONLY: LeaseRefusal
LEASE_REFUSAL_STORE_NOT_READABLE: LeaseRefusal
LEASE_REFUSAL_SPANS_NOT_ACCEPTED: LeaseRefusal
LEASE_REFUSAL_HOLDER_MISSING: LeaseRefusal
NEIGHBOUR_SEARCH_UNSPECIFIED: NeighbourSearch
NEIGHBOUR_SEARCH_NOT_NEEDED: NeighbourSearch
NEIGHBOUR_SEARCH_DONE: NeighbourSearch
NEIGHBOUR_SEARCH_DISABLED: NeighbourSearch
NEIGHBOUR_SEARCH_NO_TEXT: NeighbourSearch
NEIGHBOUR_SEARCH_NOTHING_INDEXED: NeighbourSearch
NEIGHBOUR_SEARCH_LATE: NeighbourSearch
NEIGHBOUR_SEARCH_BUSY: NeighbourSearch
NEIGHBOUR_SEARCH_FAILED: NeighbourSearch
DISCOVERY_UNSPECIFIED: Discovery
DISCOVERY_SEEDS: Discovery
DISCOVERY_SKETCH: Discovery
DISCOVERY_TEXT: Discovery
DISCOVERY_ANNOUNCED: Discovery
ADMISSION_UNSPECIFIED: Admission
ADMISSION_ADDED: Admission
ADMISSION_REPLACED: Admission
ADMISSION_COVERED: Admission
ADMISSION_NOTHING_CAPTURED: Admission
REUSE_PROVENANCE_UNSPECIFIED: ReuseProvenance
REUSE_PROVENANCE_EXACT_LOCAL_PREFIX_HIT: ReuseProvenance
REUSE_PROVENANCE_EXACT_EXTERNAL_HIT: ReuseProvenance
REUSE_PROVENANCE_REQUEST_ONLY_REUSE: ReuseProvenance
REUSE_PROVENANCE_CANDIDATE_REJECTED: ReuseProvenance
REUSE_PROVENANCE_FALLBACK_RECOMPUTE: ReuseProvenance

class Tokens(_message.Message):
    __slots__ = ("ids", "packed")
    IDS_FIELD_NUMBER: _ClassVar[int]
    PACKED_FIELD_NUMBER: _ClassVar[int]
    ids: _containers.RepeatedScalarFieldContainer[int]
    packed: bytes
    def __init__(self, ids: _Optional[_Iterable[int]] = ..., packed: _Optional[bytes] = ...) -> None: ...

class Gates(_message.Message):
    __slots__ = ("min_prompt_tokens", "min_reuse_tokens", "min_similarity", "min_reuse_ratio", "exact_prefix_skip_ratio")
    MIN_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MIN_REUSE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MIN_SIMILARITY_FIELD_NUMBER: _ClassVar[int]
    MIN_REUSE_RATIO_FIELD_NUMBER: _ClassVar[int]
    EXACT_PREFIX_SKIP_RATIO_FIELD_NUMBER: _ClassVar[int]
    min_prompt_tokens: int
    min_reuse_tokens: int
    min_similarity: float
    min_reuse_ratio: float
    exact_prefix_skip_ratio: float
    def __init__(self, min_prompt_tokens: _Optional[int] = ..., min_reuse_tokens: _Optional[int] = ..., min_similarity: _Optional[float] = ..., min_reuse_ratio: _Optional[float] = ..., exact_prefix_skip_ratio: _Optional[float] = ...) -> None: ...

class FindDonorRequest(_message.Message):
    __slots__ = ("tokens", "namespace", "exact_prefix_tokens", "request_id", "holder", "readable_store_ids", "gates", "accept_spans", "asynchronous_load", "minimum_tier", "explain", "lease_ttl_ms", "text", "segment_donors_max", "neighbours_max")
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    EXACT_PREFIX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    HOLDER_FIELD_NUMBER: _ClassVar[int]
    READABLE_STORE_IDS_FIELD_NUMBER: _ClassVar[int]
    GATES_FIELD_NUMBER: _ClassVar[int]
    ACCEPT_SPANS_FIELD_NUMBER: _ClassVar[int]
    ASYNCHRONOUS_LOAD_FIELD_NUMBER: _ClassVar[int]
    MINIMUM_TIER_FIELD_NUMBER: _ClassVar[int]
    EXPLAIN_FIELD_NUMBER: _ClassVar[int]
    LEASE_TTL_MS_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    SEGMENT_DONORS_MAX_FIELD_NUMBER: _ClassVar[int]
    NEIGHBOURS_MAX_FIELD_NUMBER: _ClassVar[int]
    tokens: Tokens
    namespace: _common_pb2.NamespaceSelector
    exact_prefix_tokens: int
    request_id: str
    holder: str
    readable_store_ids: _containers.RepeatedScalarFieldContainer[str]
    gates: Gates
    accept_spans: bool
    asynchronous_load: bool
    minimum_tier: _common_pb2.Tier
    explain: bool
    lease_ttl_ms: int
    text: str
    segment_donors_max: int
    neighbours_max: int
    def __init__(self, tokens: _Optional[_Union[Tokens, _Mapping]] = ..., namespace: _Optional[_Union[_common_pb2.NamespaceSelector, _Mapping]] = ..., exact_prefix_tokens: _Optional[int] = ..., request_id: _Optional[str] = ..., holder: _Optional[str] = ..., readable_store_ids: _Optional[_Iterable[str]] = ..., gates: _Optional[_Union[Gates, _Mapping]] = ..., accept_spans: bool = ..., asynchronous_load: bool = ..., minimum_tier: _Optional[_Union[_common_pb2.Tier, str]] = ..., explain: bool = ..., lease_ttl_ms: _Optional[int] = ..., text: _Optional[str] = ..., segment_donors_max: _Optional[int] = ..., neighbours_max: _Optional[int] = ...) -> None: ...

class FindDonorResponse(_message.Message):
    __slots__ = ("outcome", "reason", "detail", "match", "lease", "lease_refusal", "namespace_id", "mode", "timings", "rejected", "segments", "repeated_answer", "neighbours", "sketch_search", "text_search")
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    MATCH_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    LEASE_REFUSAL_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_ID_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    TIMINGS_FIELD_NUMBER: _ClassVar[int]
    REJECTED_FIELD_NUMBER: _ClassVar[int]
    SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    REPEATED_ANSWER_FIELD_NUMBER: _ClassVar[int]
    NEIGHBOURS_FIELD_NUMBER: _ClassVar[int]
    SKETCH_SEARCH_FIELD_NUMBER: _ClassVar[int]
    TEXT_SEARCH_FIELD_NUMBER: _ClassVar[int]
    outcome: FindOutcome
    reason: _common_pb2.FallbackReason
    detail: str
    match: DonorMatch
    lease: _common_pb2.Lease
    lease_refusal: LeaseRefusal
    namespace_id: str
    mode: _common_pb2.Mode
    timings: StageTimings
    rejected: _containers.RepeatedCompositeFieldContainer[RejectedCandidate]
    segments: _containers.RepeatedCompositeFieldContainer[SegmentSpan]
    repeated_answer: bool
    neighbours: _containers.RepeatedCompositeFieldContainer[Neighbour]
    sketch_search: NeighbourSearch
    text_search: NeighbourSearch
    def __init__(self, outcome: _Optional[_Union[FindOutcome, str]] = ..., reason: _Optional[_Union[_common_pb2.FallbackReason, str]] = ..., detail: _Optional[str] = ..., match: _Optional[_Union[DonorMatch, _Mapping]] = ..., lease: _Optional[_Union[_common_pb2.Lease, _Mapping]] = ..., lease_refusal: _Optional[_Union[LeaseRefusal, str]] = ..., namespace_id: _Optional[str] = ..., mode: _Optional[_Union[_common_pb2.Mode, str]] = ..., timings: _Optional[_Union[StageTimings, _Mapping]] = ..., rejected: _Optional[_Iterable[_Union[RejectedCandidate, _Mapping]]] = ..., segments: _Optional[_Iterable[_Union[SegmentSpan, _Mapping]]] = ..., repeated_answer: bool = ..., neighbours: _Optional[_Iterable[_Union[Neighbour, _Mapping]]] = ..., sketch_search: _Optional[_Union[NeighbourSearch, str]] = ..., text_search: _Optional[_Union[NeighbourSearch, str]] = ...) -> None: ...

class Neighbour(_message.Message):
    __slots__ = ("donor_id", "owner", "discovery", "score", "quality")
    DONOR_ID_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    DISCOVERY_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    QUALITY_FIELD_NUMBER: _ClassVar[int]
    donor_id: str
    owner: _common_pb2.Owner
    discovery: Discovery
    score: float
    quality: QualitySignals
    def __init__(self, donor_id: _Optional[str] = ..., owner: _Optional[_Union[_common_pb2.Owner, _Mapping]] = ..., discovery: _Optional[_Union[Discovery, str]] = ..., score: _Optional[float] = ..., quality: _Optional[_Union[QualitySignals, _Mapping]] = ...) -> None: ...

class DonorMatch(_message.Message):
    __slots__ = ("donor_id", "owner", "owner_generation", "medium", "store_id", "tier", "cache_policy", "reusable_prefix_tokens", "donor_offset", "spans", "similarity", "reuse_ratio", "captured_tokens", "quality")
    DONOR_ID_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    OWNER_GENERATION_FIELD_NUMBER: _ClassVar[int]
    MEDIUM_FIELD_NUMBER: _ClassVar[int]
    STORE_ID_FIELD_NUMBER: _ClassVar[int]
    TIER_FIELD_NUMBER: _ClassVar[int]
    CACHE_POLICY_FIELD_NUMBER: _ClassVar[int]
    REUSABLE_PREFIX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    DONOR_OFFSET_FIELD_NUMBER: _ClassVar[int]
    SPANS_FIELD_NUMBER: _ClassVar[int]
    SIMILARITY_FIELD_NUMBER: _ClassVar[int]
    REUSE_RATIO_FIELD_NUMBER: _ClassVar[int]
    CAPTURED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    QUALITY_FIELD_NUMBER: _ClassVar[int]
    donor_id: str
    owner: _common_pb2.Owner
    owner_generation: int
    medium: _common_pb2.Medium
    store_id: str
    tier: _common_pb2.Tier
    cache_policy: _common_pb2.CachePolicy
    reusable_prefix_tokens: int
    donor_offset: int
    spans: _containers.RepeatedCompositeFieldContainer[Span]
    similarity: float
    reuse_ratio: float
    captured_tokens: int
    quality: QualitySignals
    def __init__(self, donor_id: _Optional[str] = ..., owner: _Optional[_Union[_common_pb2.Owner, _Mapping]] = ..., owner_generation: _Optional[int] = ..., medium: _Optional[_Union[_common_pb2.Medium, str]] = ..., store_id: _Optional[str] = ..., tier: _Optional[_Union[_common_pb2.Tier, str]] = ..., cache_policy: _Optional[_Union[_common_pb2.CachePolicy, str]] = ..., reusable_prefix_tokens: _Optional[int] = ..., donor_offset: _Optional[int] = ..., spans: _Optional[_Iterable[_Union[Span, _Mapping]]] = ..., similarity: _Optional[float] = ..., reuse_ratio: _Optional[float] = ..., captured_tokens: _Optional[int] = ..., quality: _Optional[_Union[QualitySignals, _Mapping]] = ...) -> None: ...

class Span(_message.Message):
    __slots__ = ("donor_start", "target_start", "length", "tier")
    DONOR_START_FIELD_NUMBER: _ClassVar[int]
    TARGET_START_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    TIER_FIELD_NUMBER: _ClassVar[int]
    donor_start: int
    target_start: int
    length: int
    tier: _common_pb2.Tier
    def __init__(self, donor_start: _Optional[int] = ..., target_start: _Optional[int] = ..., length: _Optional[int] = ..., tier: _Optional[_Union[_common_pb2.Tier, str]] = ...) -> None: ...

class SegmentSpan(_message.Message):
    __slots__ = ("donor_id", "owner", "span")
    DONOR_ID_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    SPAN_FIELD_NUMBER: _ClassVar[int]
    donor_id: str
    owner: _common_pb2.Owner
    span: Span
    def __init__(self, donor_id: _Optional[str] = ..., owner: _Optional[_Union[_common_pb2.Owner, _Mapping]] = ..., span: _Optional[_Union[Span, _Mapping]] = ...) -> None: ...

class QualitySignals(_message.Message):
    __slots__ = ("facts_differ", "discovery", "facts_compared")
    FACTS_DIFFER_FIELD_NUMBER: _ClassVar[int]
    DISCOVERY_FIELD_NUMBER: _ClassVar[int]
    FACTS_COMPARED_FIELD_NUMBER: _ClassVar[int]
    facts_differ: bool
    discovery: Discovery
    facts_compared: bool
    def __init__(self, facts_differ: bool = ..., discovery: _Optional[_Union[Discovery, str]] = ..., facts_compared: bool = ...) -> None: ...

class RejectedCandidate(_message.Message):
    __slots__ = ("donor_id", "reason", "detail", "verified_tokens", "reusable_prefix_tokens")
    DONOR_ID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    VERIFIED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    REUSABLE_PREFIX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    donor_id: str
    reason: _common_pb2.FallbackReason
    detail: str
    verified_tokens: int
    reusable_prefix_tokens: int
    def __init__(self, donor_id: _Optional[str] = ..., reason: _Optional[_Union[_common_pb2.FallbackReason, str]] = ..., detail: _Optional[str] = ..., verified_tokens: _Optional[int] = ..., reusable_prefix_tokens: _Optional[int] = ...) -> None: ...

class StageTimings(_message.Message):
    __slots__ = ("decode_us", "seeds_us", "align_us", "gate_us", "total_us", "neighbours_us", "facts_us")
    DECODE_US_FIELD_NUMBER: _ClassVar[int]
    SEEDS_US_FIELD_NUMBER: _ClassVar[int]
    ALIGN_US_FIELD_NUMBER: _ClassVar[int]
    GATE_US_FIELD_NUMBER: _ClassVar[int]
    TOTAL_US_FIELD_NUMBER: _ClassVar[int]
    NEIGHBOURS_US_FIELD_NUMBER: _ClassVar[int]
    FACTS_US_FIELD_NUMBER: _ClassVar[int]
    decode_us: float
    seeds_us: float
    align_us: float
    gate_us: float
    total_us: float
    neighbours_us: float
    facts_us: float
    def __init__(self, decode_us: _Optional[float] = ..., seeds_us: _Optional[float] = ..., align_us: _Optional[float] = ..., gate_us: _Optional[float] = ..., total_us: _Optional[float] = ..., neighbours_us: _Optional[float] = ..., facts_us: _Optional[float] = ...) -> None: ...

class FindDonorsRequest(_message.Message):
    __slots__ = ("correlation_id", "request")
    CORRELATION_ID_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    correlation_id: int
    request: FindDonorRequest
    def __init__(self, correlation_id: _Optional[int] = ..., request: _Optional[_Union[FindDonorRequest, _Mapping]] = ...) -> None: ...

class FindDonorsResponse(_message.Message):
    __slots__ = ("correlation_id", "answer", "error")
    CORRELATION_ID_FIELD_NUMBER: _ClassVar[int]
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    correlation_id: int
    answer: FindDonorResponse
    error: _routing_pb2.CallError
    def __init__(self, correlation_id: _Optional[int] = ..., answer: _Optional[_Union[FindDonorResponse, _Mapping]] = ..., error: _Optional[_Union[_routing_pb2.CallError, _Mapping]] = ...) -> None: ...

class AnnounceOwnerRequest(_message.Message):
    __slots__ = ("owner", "generation", "ttl_ms")
    OWNER_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    TTL_MS_FIELD_NUMBER: _ClassVar[int]
    owner: _common_pb2.Owner
    generation: int
    ttl_ms: int
    def __init__(self, owner: _Optional[_Union[_common_pb2.Owner, _Mapping]] = ..., generation: _Optional[int] = ..., ttl_ms: _Optional[int] = ...) -> None: ...

class AnnounceOwnerResponse(_message.Message):
    __slots__ = ("epoch", "dropped_donors", "held_donors", "ttl_ms")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    DROPPED_DONORS_FIELD_NUMBER: _ClassVar[int]
    HELD_DONORS_FIELD_NUMBER: _ClassVar[int]
    TTL_MS_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    dropped_donors: int
    held_donors: int
    ttl_ms: int
    def __init__(self, epoch: _Optional[int] = ..., dropped_donors: _Optional[int] = ..., held_donors: _Optional[int] = ..., ttl_ms: _Optional[int] = ...) -> None: ...

class RegisterDonorRequest(_message.Message):
    __slots__ = ("donor_id", "namespace", "owner", "owner_generation", "tokens", "captured_tokens", "exact_tokens", "medium", "store_id", "source_request_id", "block_hashes", "text")
    DONOR_ID_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    OWNER_GENERATION_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    CAPTURED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    EXACT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MEDIUM_FIELD_NUMBER: _ClassVar[int]
    STORE_ID_FIELD_NUMBER: _ClassVar[int]
    SOURCE_REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    BLOCK_HASHES_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    donor_id: str
    namespace: _common_pb2.NamespaceSelector
    owner: _common_pb2.Owner
    owner_generation: int
    tokens: Tokens
    captured_tokens: int
    exact_tokens: int
    medium: _common_pb2.Medium
    store_id: str
    source_request_id: str
    block_hashes: _containers.RepeatedScalarFieldContainer[bytes]
    text: str
    def __init__(self, donor_id: _Optional[str] = ..., namespace: _Optional[_Union[_common_pb2.NamespaceSelector, _Mapping]] = ..., owner: _Optional[_Union[_common_pb2.Owner, _Mapping]] = ..., owner_generation: _Optional[int] = ..., tokens: _Optional[_Union[Tokens, _Mapping]] = ..., captured_tokens: _Optional[int] = ..., exact_tokens: _Optional[int] = ..., medium: _Optional[_Union[_common_pb2.Medium, str]] = ..., store_id: _Optional[str] = ..., source_request_id: _Optional[str] = ..., block_hashes: _Optional[_Iterable[bytes]] = ..., text: _Optional[str] = ...) -> None: ...

class RegisterDonorResponse(_message.Message):
    __slots__ = ("admission", "namespace_id", "covered_by", "evicted")
    ADMISSION_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_ID_FIELD_NUMBER: _ClassVar[int]
    COVERED_BY_FIELD_NUMBER: _ClassVar[int]
    EVICTED_FIELD_NUMBER: _ClassVar[int]
    admission: Admission
    namespace_id: str
    covered_by: str
    evicted: int
    def __init__(self, admission: _Optional[_Union[Admission, str]] = ..., namespace_id: _Optional[str] = ..., covered_by: _Optional[str] = ..., evicted: _Optional[int] = ...) -> None: ...

class RegisterDonorsRequest(_message.Message):
    __slots__ = ("correlation_id", "request")
    CORRELATION_ID_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    correlation_id: int
    request: RegisterDonorRequest
    def __init__(self, correlation_id: _Optional[int] = ..., request: _Optional[_Union[RegisterDonorRequest, _Mapping]] = ...) -> None: ...

class RegisterDonorsResponse(_message.Message):
    __slots__ = ("correlation_id", "acknowledged", "refused")
    CORRELATION_ID_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGED_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    correlation_id: int
    acknowledged: RegisterDonorResponse
    refused: _routing_pb2.CallError
    def __init__(self, correlation_id: _Optional[int] = ..., acknowledged: _Optional[_Union[RegisterDonorResponse, _Mapping]] = ..., refused: _Optional[_Union[_routing_pb2.CallError, _Mapping]] = ...) -> None: ...

class RemoveDonorsRequest(_message.Message):
    __slots__ = ("donors", "owner", "namespace")
    DONORS_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    donors: DonorIds
    owner: _common_pb2.Owner
    namespace: _common_pb2.NamespaceSelector
    def __init__(self, donors: _Optional[_Union[DonorIds, _Mapping]] = ..., owner: _Optional[_Union[_common_pb2.Owner, _Mapping]] = ..., namespace: _Optional[_Union[_common_pb2.NamespaceSelector, _Mapping]] = ...) -> None: ...

class DonorIds(_message.Message):
    __slots__ = ("namespace", "donor_ids")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    DONOR_IDS_FIELD_NUMBER: _ClassVar[int]
    namespace: _common_pb2.NamespaceSelector
    donor_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, namespace: _Optional[_Union[_common_pb2.NamespaceSelector, _Mapping]] = ..., donor_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class RemoveDonorsResponse(_message.Message):
    __slots__ = ("removed",)
    REMOVED_FIELD_NUMBER: _ClassVar[int]
    removed: int
    def __init__(self, removed: _Optional[int] = ...) -> None: ...

class ReportReuseRequest(_message.Message):
    __slots__ = ("request_id", "holder", "lease_id", "provenance", "reason", "tokens_loaded", "invalid_blocks")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    HOLDER_FIELD_NUMBER: _ClassVar[int]
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    PROVENANCE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    TOKENS_LOADED_FIELD_NUMBER: _ClassVar[int]
    INVALID_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    holder: str
    lease_id: bytes
    provenance: ReuseProvenance
    reason: _common_pb2.FallbackReason
    tokens_loaded: int
    invalid_blocks: int
    def __init__(self, request_id: _Optional[str] = ..., holder: _Optional[str] = ..., lease_id: _Optional[bytes] = ..., provenance: _Optional[_Union[ReuseProvenance, str]] = ..., reason: _Optional[_Union[_common_pb2.FallbackReason, str]] = ..., tokens_loaded: _Optional[int] = ..., invalid_blocks: _Optional[int] = ...) -> None: ...

class ReportReuseResponse(_message.Message):
    __slots__ = ("released",)
    RELEASED_FIELD_NUMBER: _ClassVar[int]
    released: bool
    def __init__(self, released: bool = ...) -> None: ...
