from kvatlas.v1 import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Similarity(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SIMILARITY_UNSPECIFIED: _ClassVar[Similarity]
    SIMILARITY_DOT: _ClassVar[Similarity]
    SIMILARITY_COSINE: _ClassVar[Similarity]

class GroupAggregation(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    GROUP_AGGREGATION_UNSPECIFIED: _ClassVar[GroupAggregation]
    GROUP_AGGREGATION_MEAN: _ClassVar[GroupAggregation]
    GROUP_AGGREGATION_MAX: _ClassVar[GroupAggregation]

class ManifestProvenance(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    MANIFEST_PROVENANCE_UNSPECIFIED: _ClassVar[ManifestProvenance]
    MANIFEST_PROVENANCE_PRIOR: _ClassVar[ManifestProvenance]
    MANIFEST_PROVENANCE_ONLINE: _ClassVar[ManifestProvenance]
    MANIFEST_PROVENANCE_POLICY_ONLY: _ClassVar[ManifestProvenance]

class ManifestReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    MANIFEST_REASON_UNSPECIFIED: _ClassVar[ManifestReason]
    MANIFEST_REASON_PRIOR_SHORT: _ClassVar[ManifestReason]
    MANIFEST_REASON_PRIOR_MISSING: _ClassVar[ManifestReason]
    MANIFEST_REASON_QUERY_UNKNOWN: _ClassVar[ManifestReason]
    MANIFEST_REASON_ONLINE_UNAVAILABLE: _ClassVar[ManifestReason]
    MANIFEST_REASON_ALL_BLOCKS: _ClassVar[ManifestReason]

class Pooling(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    POOLING_UNSPECIFIED: _ClassVar[Pooling]
    POOLING_MEAN: _ClassVar[Pooling]
    POOLING_MAX: _ClassVar[Pooling]

class PriorFormat(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PRIOR_FORMAT_UNSPECIFIED: _ClassVar[PriorFormat]
    PRIOR_FORMAT_TORCH: _ClassVar[PriorFormat]
    PRIOR_FORMAT_SAFETENSORS: _ClassVar[PriorFormat]
    PRIOR_FORMAT_STORED: _ClassVar[PriorFormat]

class RopeFrame(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ROPE_FRAME_UNSPECIFIED: _ClassVar[RopeFrame]
    ROPE_FRAME_PRE_ROPE: _ClassVar[RopeFrame]
    ROPE_FRAME_POST_ROPE: _ClassVar[RopeFrame]

class PairLayout(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PAIR_LAYOUT_UNSPECIFIED: _ClassVar[PairLayout]
    PAIR_LAYOUT_HALF: _ClassVar[PairLayout]
    PAIR_LAYOUT_INTERLEAVED: _ClassVar[PairLayout]

class ElementType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ELEMENT_TYPE_UNSPECIFIED: _ClassVar[ElementType]
    ELEMENT_TYPE_F32: _ClassVar[ElementType]
    ELEMENT_TYPE_F16: _ClassVar[ElementType]
    ELEMENT_TYPE_BF16: _ClassVar[ElementType]

class KeySummaryContent(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    KEY_SUMMARY_CONTENT_UNSPECIFIED: _ClassVar[KeySummaryContent]
    KEY_SUMMARY_CONTENT_SUMMARY: _ClassVar[KeySummaryContent]
    KEY_SUMMARY_CONTENT_CARTRIDGE: _ClassVar[KeySummaryContent]
SIMILARITY_UNSPECIFIED: Similarity
SIMILARITY_DOT: Similarity
SIMILARITY_COSINE: Similarity
GROUP_AGGREGATION_UNSPECIFIED: GroupAggregation
GROUP_AGGREGATION_MEAN: GroupAggregation
GROUP_AGGREGATION_MAX: GroupAggregation
MANIFEST_PROVENANCE_UNSPECIFIED: ManifestProvenance
MANIFEST_PROVENANCE_PRIOR: ManifestProvenance
MANIFEST_PROVENANCE_ONLINE: ManifestProvenance
MANIFEST_PROVENANCE_POLICY_ONLY: ManifestProvenance
MANIFEST_REASON_UNSPECIFIED: ManifestReason
MANIFEST_REASON_PRIOR_SHORT: ManifestReason
MANIFEST_REASON_PRIOR_MISSING: ManifestReason
MANIFEST_REASON_QUERY_UNKNOWN: ManifestReason
MANIFEST_REASON_ONLINE_UNAVAILABLE: ManifestReason
MANIFEST_REASON_ALL_BLOCKS: ManifestReason
POOLING_UNSPECIFIED: Pooling
POOLING_MEAN: Pooling
POOLING_MAX: Pooling
PRIOR_FORMAT_UNSPECIFIED: PriorFormat
PRIOR_FORMAT_TORCH: PriorFormat
PRIOR_FORMAT_SAFETENSORS: PriorFormat
PRIOR_FORMAT_STORED: PriorFormat
ROPE_FRAME_UNSPECIFIED: RopeFrame
ROPE_FRAME_PRE_ROPE: RopeFrame
ROPE_FRAME_POST_ROPE: RopeFrame
PAIR_LAYOUT_UNSPECIFIED: PairLayout
PAIR_LAYOUT_HALF: PairLayout
PAIR_LAYOUT_INTERLEAVED: PairLayout
ELEMENT_TYPE_UNSPECIFIED: ElementType
ELEMENT_TYPE_F32: ElementType
ELEMENT_TYPE_F16: ElementType
ELEMENT_TYPE_BF16: ElementType
KEY_SUMMARY_CONTENT_UNSPECIFIED: KeySummaryContent
KEY_SUMMARY_CONTENT_SUMMARY: KeySummaryContent
KEY_SUMMARY_CONTENT_CARTRIDGE: KeySummaryContent

class GetManifestRequest(_message.Message):
    __slots__ = ("prefix_hash", "query_hash", "k", "policy", "algorithm", "total_blocks", "fallback_policy", "allow_fallback", "lease_ttl_ms", "query", "query_tokens", "similarity", "aggregation")
    PREFIX_HASH_FIELD_NUMBER: _ClassVar[int]
    QUERY_HASH_FIELD_NUMBER: _ClassVar[int]
    K_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    ALGORITHM_FIELD_NUMBER: _ClassVar[int]
    TOTAL_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    FALLBACK_POLICY_FIELD_NUMBER: _ClassVar[int]
    ALLOW_FALLBACK_FIELD_NUMBER: _ClassVar[int]
    LEASE_TTL_MS_FIELD_NUMBER: _ClassVar[int]
    QUERY_FIELD_NUMBER: _ClassVar[int]
    QUERY_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SIMILARITY_FIELD_NUMBER: _ClassVar[int]
    AGGREGATION_FIELD_NUMBER: _ClassVar[int]
    prefix_hash: str
    query_hash: str
    k: int
    policy: str
    algorithm: str
    total_blocks: int
    fallback_policy: str
    allow_fallback: bool
    lease_ttl_ms: int
    query: QueryVectors
    query_tokens: QueryTokens
    similarity: Similarity
    aggregation: GroupAggregation
    def __init__(self, prefix_hash: _Optional[str] = ..., query_hash: _Optional[str] = ..., k: _Optional[int] = ..., policy: _Optional[str] = ..., algorithm: _Optional[str] = ..., total_blocks: _Optional[int] = ..., fallback_policy: _Optional[str] = ..., allow_fallback: bool = ..., lease_ttl_ms: _Optional[int] = ..., query: _Optional[_Union[QueryVectors, _Mapping]] = ..., query_tokens: _Optional[_Union[QueryTokens, _Mapping]] = ..., similarity: _Optional[_Union[Similarity, str]] = ..., aggregation: _Optional[_Union[GroupAggregation, str]] = ...) -> None: ...

class Repair(_message.Message):
    __slots__ = ("name", "ratio")
    NAME_FIELD_NUMBER: _ClassVar[int]
    RATIO_FIELD_NUMBER: _ClassVar[int]
    name: str
    ratio: float
    def __init__(self, name: _Optional[str] = ..., ratio: _Optional[float] = ...) -> None: ...

class GetManifestResponse(_message.Message):
    __slots__ = ("block_indices", "total_blocks", "effective_k", "algorithm", "policy", "prior_generation", "repair", "lease", "provenance", "reason", "per_head")
    BLOCK_INDICES_FIELD_NUMBER: _ClassVar[int]
    TOTAL_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    EFFECTIVE_K_FIELD_NUMBER: _ClassVar[int]
    ALGORITHM_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    PRIOR_GENERATION_FIELD_NUMBER: _ClassVar[int]
    REPAIR_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    PROVENANCE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    PER_HEAD_FIELD_NUMBER: _ClassVar[int]
    block_indices: _containers.RepeatedScalarFieldContainer[int]
    total_blocks: int
    effective_k: int
    algorithm: str
    policy: str
    prior_generation: int
    repair: Repair
    lease: _common_pb2.Lease
    provenance: ManifestProvenance
    reason: ManifestReason
    per_head: PerHeadBlocks
    def __init__(self, block_indices: _Optional[_Iterable[int]] = ..., total_blocks: _Optional[int] = ..., effective_k: _Optional[int] = ..., algorithm: _Optional[str] = ..., policy: _Optional[str] = ..., prior_generation: _Optional[int] = ..., repair: _Optional[_Union[Repair, _Mapping]] = ..., lease: _Optional[_Union[_common_pb2.Lease, _Mapping]] = ..., provenance: _Optional[_Union[ManifestProvenance, str]] = ..., reason: _Optional[_Union[ManifestReason, str]] = ..., per_head: _Optional[_Union[PerHeadBlocks, _Mapping]] = ...) -> None: ...

class PerHeadBlocks(_message.Message):
    __slots__ = ("layers", "kv_heads", "block_indices")
    LAYERS_FIELD_NUMBER: _ClassVar[int]
    KV_HEADS_FIELD_NUMBER: _ClassVar[int]
    BLOCK_INDICES_FIELD_NUMBER: _ClassVar[int]
    layers: int
    kv_heads: int
    block_indices: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, layers: _Optional[int] = ..., kv_heads: _Optional[int] = ..., block_indices: _Optional[_Iterable[int]] = ...) -> None: ...

class GetManifestsRequest(_message.Message):
    __slots__ = ("correlation_id", "request")
    CORRELATION_ID_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    correlation_id: int
    request: GetManifestRequest
    def __init__(self, correlation_id: _Optional[int] = ..., request: _Optional[_Union[GetManifestRequest, _Mapping]] = ...) -> None: ...

class GetManifestsResponse(_message.Message):
    __slots__ = ("correlation_id", "manifest", "error")
    CORRELATION_ID_FIELD_NUMBER: _ClassVar[int]
    MANIFEST_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    correlation_id: int
    manifest: GetManifestResponse
    error: CallError
    def __init__(self, correlation_id: _Optional[int] = ..., manifest: _Optional[_Union[GetManifestResponse, _Mapping]] = ..., error: _Optional[_Union[CallError, _Mapping]] = ...) -> None: ...

class CallError(_message.Message):
    __slots__ = ("code", "message")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    code: int
    message: str
    def __init__(self, code: _Optional[int] = ..., message: _Optional[str] = ...) -> None: ...

class PutPriorRequest(_message.Message):
    __slots__ = ("header", "chunk")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    header: PutPriorHeader
    chunk: bytes
    def __init__(self, header: _Optional[_Union[PutPriorHeader, _Mapping]] = ..., chunk: _Optional[bytes] = ...) -> None: ...

class PutPriorHeader(_message.Message):
    __slots__ = ("prefix_hash", "query_hash", "algorithm", "format", "pooling", "repair", "size_bytes")
    PREFIX_HASH_FIELD_NUMBER: _ClassVar[int]
    QUERY_HASH_FIELD_NUMBER: _ClassVar[int]
    ALGORITHM_FIELD_NUMBER: _ClassVar[int]
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    POOLING_FIELD_NUMBER: _ClassVar[int]
    REPAIR_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    prefix_hash: str
    query_hash: str
    algorithm: str
    format: PriorFormat
    pooling: Pooling
    repair: Repair
    size_bytes: int
    def __init__(self, prefix_hash: _Optional[str] = ..., query_hash: _Optional[str] = ..., algorithm: _Optional[str] = ..., format: _Optional[_Union[PriorFormat, str]] = ..., pooling: _Optional[_Union[Pooling, str]] = ..., repair: _Optional[_Union[Repair, _Mapping]] = ..., size_bytes: _Optional[int] = ...) -> None: ...

class PutPriorResponse(_message.Message):
    __slots__ = ("prior", "replaced")
    PRIOR_FIELD_NUMBER: _ClassVar[int]
    REPLACED_FIELD_NUMBER: _ClassVar[int]
    prior: Prior
    replaced: bool
    def __init__(self, prior: _Optional[_Union[Prior, _Mapping]] = ..., replaced: bool = ...) -> None: ...

class Prior(_message.Message):
    __slots__ = ("prefix_hash", "query_hash", "algorithm", "generation", "total_blocks", "layers", "kv_heads", "block_size", "pooling", "repair", "listed_k", "legacy_list_length", "file_bytes", "put_unix_ms", "metadata")
    class MetadataEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    PREFIX_HASH_FIELD_NUMBER: _ClassVar[int]
    QUERY_HASH_FIELD_NUMBER: _ClassVar[int]
    ALGORITHM_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    TOTAL_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    LAYERS_FIELD_NUMBER: _ClassVar[int]
    KV_HEADS_FIELD_NUMBER: _ClassVar[int]
    BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    POOLING_FIELD_NUMBER: _ClassVar[int]
    REPAIR_FIELD_NUMBER: _ClassVar[int]
    LISTED_K_FIELD_NUMBER: _ClassVar[int]
    LEGACY_LIST_LENGTH_FIELD_NUMBER: _ClassVar[int]
    FILE_BYTES_FIELD_NUMBER: _ClassVar[int]
    PUT_UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    prefix_hash: str
    query_hash: str
    algorithm: str
    generation: int
    total_blocks: int
    layers: int
    kv_heads: int
    block_size: int
    pooling: Pooling
    repair: Repair
    listed_k: _containers.RepeatedScalarFieldContainer[int]
    legacy_list_length: int
    file_bytes: int
    put_unix_ms: int
    metadata: _containers.ScalarMap[str, str]
    def __init__(self, prefix_hash: _Optional[str] = ..., query_hash: _Optional[str] = ..., algorithm: _Optional[str] = ..., generation: _Optional[int] = ..., total_blocks: _Optional[int] = ..., layers: _Optional[int] = ..., kv_heads: _Optional[int] = ..., block_size: _Optional[int] = ..., pooling: _Optional[_Union[Pooling, str]] = ..., repair: _Optional[_Union[Repair, _Mapping]] = ..., listed_k: _Optional[_Iterable[int]] = ..., legacy_list_length: _Optional[int] = ..., file_bytes: _Optional[int] = ..., put_unix_ms: _Optional[int] = ..., metadata: _Optional[_Mapping[str, str]] = ...) -> None: ...

class PriorKey(_message.Message):
    __slots__ = ("prefix_hash", "query_hash", "algorithm")
    PREFIX_HASH_FIELD_NUMBER: _ClassVar[int]
    QUERY_HASH_FIELD_NUMBER: _ClassVar[int]
    ALGORITHM_FIELD_NUMBER: _ClassVar[int]
    prefix_hash: str
    query_hash: str
    algorithm: str
    def __init__(self, prefix_hash: _Optional[str] = ..., query_hash: _Optional[str] = ..., algorithm: _Optional[str] = ...) -> None: ...

class GetPriorRequest(_message.Message):
    __slots__ = ("key",)
    KEY_FIELD_NUMBER: _ClassVar[int]
    key: PriorKey
    def __init__(self, key: _Optional[_Union[PriorKey, _Mapping]] = ...) -> None: ...

class ListPriorsRequest(_message.Message):
    __slots__ = ("page_size", "page_token", "prefix_hash_begins")
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    PREFIX_HASH_BEGINS_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: str
    prefix_hash_begins: str
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[str] = ..., prefix_hash_begins: _Optional[str] = ...) -> None: ...

class ListPriorsResponse(_message.Message):
    __slots__ = ("priors", "next_page_token")
    PRIORS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    priors: _containers.RepeatedCompositeFieldContainer[Prior]
    next_page_token: str
    def __init__(self, priors: _Optional[_Iterable[_Union[Prior, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class DeletePriorRequest(_message.Message):
    __slots__ = ("key",)
    KEY_FIELD_NUMBER: _ClassVar[int]
    key: PriorKey
    def __init__(self, key: _Optional[_Union[PriorKey, _Mapping]] = ...) -> None: ...

class DeletePriorResponse(_message.Message):
    __slots__ = ("deleted",)
    DELETED_FIELD_NUMBER: _ClassVar[int]
    deleted: int
    def __init__(self, deleted: _Optional[int] = ...) -> None: ...

class ReadPriorRequest(_message.Message):
    __slots__ = ("key",)
    KEY_FIELD_NUMBER: _ClassVar[int]
    key: PriorKey
    def __init__(self, key: _Optional[_Union[PriorKey, _Mapping]] = ...) -> None: ...

class ReadPriorResponse(_message.Message):
    __slots__ = ("prior", "chunk")
    PRIOR_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    prior: Prior
    chunk: bytes
    def __init__(self, prior: _Optional[_Union[Prior, _Mapping]] = ..., chunk: _Optional[bytes] = ...) -> None: ...

class QueryVectors(_message.Message):
    __slots__ = ("frame", "element_type", "layer_ids", "heads", "head_dim", "group_mean", "vectors", "position", "mean_real", "mean_imaginary", "mean_absolute", "pair_layout")
    FRAME_FIELD_NUMBER: _ClassVar[int]
    ELEMENT_TYPE_FIELD_NUMBER: _ClassVar[int]
    LAYER_IDS_FIELD_NUMBER: _ClassVar[int]
    HEADS_FIELD_NUMBER: _ClassVar[int]
    HEAD_DIM_FIELD_NUMBER: _ClassVar[int]
    GROUP_MEAN_FIELD_NUMBER: _ClassVar[int]
    VECTORS_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    MEAN_REAL_FIELD_NUMBER: _ClassVar[int]
    MEAN_IMAGINARY_FIELD_NUMBER: _ClassVar[int]
    MEAN_ABSOLUTE_FIELD_NUMBER: _ClassVar[int]
    PAIR_LAYOUT_FIELD_NUMBER: _ClassVar[int]
    frame: RopeFrame
    element_type: ElementType
    layer_ids: _containers.RepeatedScalarFieldContainer[int]
    heads: int
    head_dim: int
    group_mean: bool
    vectors: bytes
    position: int
    mean_real: bytes
    mean_imaginary: bytes
    mean_absolute: bytes
    pair_layout: PairLayout
    def __init__(self, frame: _Optional[_Union[RopeFrame, str]] = ..., element_type: _Optional[_Union[ElementType, str]] = ..., layer_ids: _Optional[_Iterable[int]] = ..., heads: _Optional[int] = ..., head_dim: _Optional[int] = ..., group_mean: bool = ..., vectors: _Optional[bytes] = ..., position: _Optional[int] = ..., mean_real: _Optional[bytes] = ..., mean_imaginary: _Optional[bytes] = ..., mean_absolute: _Optional[bytes] = ..., pair_layout: _Optional[_Union[PairLayout, str]] = ...) -> None: ...

class QueryTokens(_message.Message):
    __slots__ = ("tokens", "start_position", "mean_of_last", "encoder")
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    START_POSITION_FIELD_NUMBER: _ClassVar[int]
    MEAN_OF_LAST_FIELD_NUMBER: _ClassVar[int]
    ENCODER_FIELD_NUMBER: _ClassVar[int]
    tokens: bytes
    start_position: int
    mean_of_last: int
    encoder: str
    def __init__(self, tokens: _Optional[bytes] = ..., start_position: _Optional[int] = ..., mean_of_last: _Optional[int] = ..., encoder: _Optional[str] = ...) -> None: ...

class PutKeySummaryRequest(_message.Message):
    __slots__ = ("header", "chunk")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    header: PutKeySummaryHeader
    chunk: bytes
    def __init__(self, header: _Optional[_Union[PutKeySummaryHeader, _Mapping]] = ..., chunk: _Optional[bytes] = ...) -> None: ...

class PutKeySummaryHeader(_message.Message):
    __slots__ = ("prefix_hash", "frame", "pair_layout", "inv_freq", "attention_scaling", "block_size", "layer_ids", "size_bytes", "content", "format")
    PREFIX_HASH_FIELD_NUMBER: _ClassVar[int]
    FRAME_FIELD_NUMBER: _ClassVar[int]
    PAIR_LAYOUT_FIELD_NUMBER: _ClassVar[int]
    INV_FREQ_FIELD_NUMBER: _ClassVar[int]
    ATTENTION_SCALING_FIELD_NUMBER: _ClassVar[int]
    BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    LAYER_IDS_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    prefix_hash: str
    frame: RopeFrame
    pair_layout: PairLayout
    inv_freq: _containers.RepeatedScalarFieldContainer[float]
    attention_scaling: float
    block_size: int
    layer_ids: _containers.RepeatedScalarFieldContainer[int]
    size_bytes: int
    content: KeySummaryContent
    format: PriorFormat
    def __init__(self, prefix_hash: _Optional[str] = ..., frame: _Optional[_Union[RopeFrame, str]] = ..., pair_layout: _Optional[_Union[PairLayout, str]] = ..., inv_freq: _Optional[_Iterable[float]] = ..., attention_scaling: _Optional[float] = ..., block_size: _Optional[int] = ..., layer_ids: _Optional[_Iterable[int]] = ..., size_bytes: _Optional[int] = ..., content: _Optional[_Union[KeySummaryContent, str]] = ..., format: _Optional[_Union[PriorFormat, str]] = ...) -> None: ...

class PutKeySummaryResponse(_message.Message):
    __slots__ = ("generation", "total_blocks", "replaced", "summary")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    TOTAL_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    REPLACED_FIELD_NUMBER: _ClassVar[int]
    SUMMARY_FIELD_NUMBER: _ClassVar[int]
    generation: int
    total_blocks: int
    replaced: bool
    summary: KeySummary
    def __init__(self, generation: _Optional[int] = ..., total_blocks: _Optional[int] = ..., replaced: bool = ..., summary: _Optional[_Union[KeySummary, _Mapping]] = ...) -> None: ...

class KeySummary(_message.Message):
    __slots__ = ("prefix_hash", "generation", "total_blocks", "kv_heads", "head_dim", "block_size", "layer_ids", "frame", "pair_layout", "inv_freq", "attention_scaling", "has_extremes", "has_magnitudes", "stored_bytes", "put_unix_ms")
    PREFIX_HASH_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    TOTAL_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    KV_HEADS_FIELD_NUMBER: _ClassVar[int]
    HEAD_DIM_FIELD_NUMBER: _ClassVar[int]
    BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    LAYER_IDS_FIELD_NUMBER: _ClassVar[int]
    FRAME_FIELD_NUMBER: _ClassVar[int]
    PAIR_LAYOUT_FIELD_NUMBER: _ClassVar[int]
    INV_FREQ_FIELD_NUMBER: _ClassVar[int]
    ATTENTION_SCALING_FIELD_NUMBER: _ClassVar[int]
    HAS_EXTREMES_FIELD_NUMBER: _ClassVar[int]
    HAS_MAGNITUDES_FIELD_NUMBER: _ClassVar[int]
    STORED_BYTES_FIELD_NUMBER: _ClassVar[int]
    PUT_UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    prefix_hash: str
    generation: int
    total_blocks: int
    kv_heads: int
    head_dim: int
    block_size: int
    layer_ids: _containers.RepeatedScalarFieldContainer[int]
    frame: RopeFrame
    pair_layout: PairLayout
    inv_freq: _containers.RepeatedScalarFieldContainer[float]
    attention_scaling: float
    has_extremes: bool
    has_magnitudes: bool
    stored_bytes: int
    put_unix_ms: int
    def __init__(self, prefix_hash: _Optional[str] = ..., generation: _Optional[int] = ..., total_blocks: _Optional[int] = ..., kv_heads: _Optional[int] = ..., head_dim: _Optional[int] = ..., block_size: _Optional[int] = ..., layer_ids: _Optional[_Iterable[int]] = ..., frame: _Optional[_Union[RopeFrame, str]] = ..., pair_layout: _Optional[_Union[PairLayout, str]] = ..., inv_freq: _Optional[_Iterable[float]] = ..., attention_scaling: _Optional[float] = ..., has_extremes: bool = ..., has_magnitudes: bool = ..., stored_bytes: _Optional[int] = ..., put_unix_ms: _Optional[int] = ...) -> None: ...

class GetKeySummaryRequest(_message.Message):
    __slots__ = ("prefix_hash",)
    PREFIX_HASH_FIELD_NUMBER: _ClassVar[int]
    prefix_hash: str
    def __init__(self, prefix_hash: _Optional[str] = ...) -> None: ...

class ListKeySummariesRequest(_message.Message):
    __slots__ = ("page_size", "page_token", "prefix_hash_begins")
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    PREFIX_HASH_BEGINS_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: str
    prefix_hash_begins: str
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[str] = ..., prefix_hash_begins: _Optional[str] = ...) -> None: ...

class ListKeySummariesResponse(_message.Message):
    __slots__ = ("summaries", "next_page_token")
    SUMMARIES_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    summaries: _containers.RepeatedCompositeFieldContainer[KeySummary]
    next_page_token: str
    def __init__(self, summaries: _Optional[_Iterable[_Union[KeySummary, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class DeleteKeySummaryRequest(_message.Message):
    __slots__ = ("prefix_hash",)
    PREFIX_HASH_FIELD_NUMBER: _ClassVar[int]
    prefix_hash: str
    def __init__(self, prefix_hash: _Optional[str] = ...) -> None: ...

class DeleteKeySummaryResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class PutQueryRequest(_message.Message):
    __slots__ = ("query_hash", "query", "ttl_ms")
    QUERY_HASH_FIELD_NUMBER: _ClassVar[int]
    QUERY_FIELD_NUMBER: _ClassVar[int]
    TTL_MS_FIELD_NUMBER: _ClassVar[int]
    query_hash: str
    query: QueryVectors
    ttl_ms: int
    def __init__(self, query_hash: _Optional[str] = ..., query: _Optional[_Union[QueryVectors, _Mapping]] = ..., ttl_ms: _Optional[int] = ...) -> None: ...

class PutQueryResponse(_message.Message):
    __slots__ = ("expires_unix_ms",)
    EXPIRES_UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    expires_unix_ms: int
    def __init__(self, expires_unix_ms: _Optional[int] = ...) -> None: ...

class PutEncoderRequest(_message.Message):
    __slots__ = ("name", "model_dir")
    NAME_FIELD_NUMBER: _ClassVar[int]
    MODEL_DIR_FIELD_NUMBER: _ClassVar[int]
    name: str
    model_dir: str
    def __init__(self, name: _Optional[str] = ..., model_dir: _Optional[str] = ...) -> None: ...

class PutEncoderResponse(_message.Message):
    __slots__ = ("encoder", "replaced")
    ENCODER_FIELD_NUMBER: _ClassVar[int]
    REPLACED_FIELD_NUMBER: _ClassVar[int]
    encoder: Encoder
    replaced: bool
    def __init__(self, encoder: _Optional[_Union[Encoder, _Mapping]] = ..., replaced: bool = ...) -> None: ...

class Encoder(_message.Message):
    __slots__ = ("name", "model_dir", "architecture", "query_heads", "kv_heads", "head_dim", "hidden_size", "vocabulary_size", "element_type", "pair_layout", "inv_freq", "attention_scaling", "problem")
    NAME_FIELD_NUMBER: _ClassVar[int]
    MODEL_DIR_FIELD_NUMBER: _ClassVar[int]
    ARCHITECTURE_FIELD_NUMBER: _ClassVar[int]
    QUERY_HEADS_FIELD_NUMBER: _ClassVar[int]
    KV_HEADS_FIELD_NUMBER: _ClassVar[int]
    HEAD_DIM_FIELD_NUMBER: _ClassVar[int]
    HIDDEN_SIZE_FIELD_NUMBER: _ClassVar[int]
    VOCABULARY_SIZE_FIELD_NUMBER: _ClassVar[int]
    ELEMENT_TYPE_FIELD_NUMBER: _ClassVar[int]
    PAIR_LAYOUT_FIELD_NUMBER: _ClassVar[int]
    INV_FREQ_FIELD_NUMBER: _ClassVar[int]
    ATTENTION_SCALING_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    name: str
    model_dir: str
    architecture: str
    query_heads: int
    kv_heads: int
    head_dim: int
    hidden_size: int
    vocabulary_size: int
    element_type: ElementType
    pair_layout: PairLayout
    inv_freq: _containers.RepeatedScalarFieldContainer[float]
    attention_scaling: float
    problem: str
    def __init__(self, name: _Optional[str] = ..., model_dir: _Optional[str] = ..., architecture: _Optional[str] = ..., query_heads: _Optional[int] = ..., kv_heads: _Optional[int] = ..., head_dim: _Optional[int] = ..., hidden_size: _Optional[int] = ..., vocabulary_size: _Optional[int] = ..., element_type: _Optional[_Union[ElementType, str]] = ..., pair_layout: _Optional[_Union[PairLayout, str]] = ..., inv_freq: _Optional[_Iterable[float]] = ..., attention_scaling: _Optional[float] = ..., problem: _Optional[str] = ...) -> None: ...

class ListEncodersRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListEncodersResponse(_message.Message):
    __slots__ = ("encoders",)
    ENCODERS_FIELD_NUMBER: _ClassVar[int]
    encoders: _containers.RepeatedCompositeFieldContainer[Encoder]
    def __init__(self, encoders: _Optional[_Iterable[_Union[Encoder, _Mapping]]] = ...) -> None: ...

class DeleteEncoderRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class DeleteEncoderResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
