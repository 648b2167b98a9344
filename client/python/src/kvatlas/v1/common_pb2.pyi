from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Medium(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    MEDIUM_UNSPECIFIED: _ClassVar[Medium]
    MEDIUM_DEVICE: _ClassVar[Medium]
    MEDIUM_HOST: _ClassVar[Medium]
    MEDIUM_DISK: _ClassVar[Medium]

class Tier(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TIER_UNSPECIFIED: _ClassVar[Tier]
    TIER_EXACT: _ClassVar[Tier]
    TIER_VERIFIED: _ClassVar[Tier]
    TIER_SEMANTIC: _ClassVar[Tier]

class CachePolicy(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CACHE_POLICY_UNSPECIFIED: _ClassVar[CachePolicy]
    CACHE_POLICY_EXACT_COMMIT: _ClassVar[CachePolicy]
    CACHE_POLICY_REQUEST_ONLY: _ClassVar[CachePolicy]
    CACHE_POLICY_DISCOVERY_ONLY: _ClassVar[CachePolicy]

class FallbackReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FALLBACK_REASON_UNSPECIFIED: _ClassVar[FallbackReason]
    FALLBACK_REASON_EXACT_PREFIX_SUFFICIENT: _ClassVar[FallbackReason]
    FALLBACK_REASON_PROVIDER_DISABLED: _ClassVar[FallbackReason]
    FALLBACK_REASON_PROVIDER_TIMEOUT: _ClassVar[FallbackReason]
    FALLBACK_REASON_PROVIDER_ERROR: _ClassVar[FallbackReason]
    FALLBACK_REASON_PROVIDER_MISS: _ClassVar[FallbackReason]
    FALLBACK_REASON_LOW_SIMILARITY: _ClassVar[FallbackReason]
    FALLBACK_REASON_LOW_REUSE_TOKENS: _ClassVar[FallbackReason]
    FALLBACK_REASON_NAMESPACE_MISMATCH: _ClassVar[FallbackReason]
    FALLBACK_REASON_UNSUPPORTED_REQUEST: _ClassVar[FallbackReason]
    FALLBACK_REASON_NOT_PREFIX_ANCHORED: _ClassVar[FallbackReason]
    FALLBACK_REASON_NOT_BLOCK_ALIGNED: _ClassVar[FallbackReason]
    FALLBACK_REASON_DONOR_STALE: _ClassVar[FallbackReason]
    FALLBACK_REASON_ALLOCATION_FAILED: _ClassVar[FallbackReason]
    FALLBACK_REASON_LOAD_FAILED: _ClassVar[FallbackReason]
    FALLBACK_REASON_INVALID_BLOCKS: _ClassVar[FallbackReason]
    FALLBACK_REASON_RECOMPUTE_POLICY: _ClassVar[FallbackReason]

class Mode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    MODE_UNSPECIFIED: _ClassVar[Mode]
    MODE_DISABLED: _ClassVar[Mode]
    MODE_DISCOVERY_ONLY: _ClassVar[Mode]
    MODE_MATERIALIZE: _ClassVar[Mode]
MEDIUM_UNSPECIFIED: Medium
MEDIUM_DEVICE: Medium
MEDIUM_HOST: Medium
MEDIUM_DISK: Medium
TIER_UNSPECIFIED: Tier
TIER_EXACT: Tier
TIER_VERIFIED: Tier
TIER_SEMANTIC: Tier
CACHE_POLICY_UNSPECIFIED: CachePolicy
CACHE_POLICY_EXACT_COMMIT: CachePolicy
CACHE_POLICY_REQUEST_ONLY: CachePolicy
CACHE_POLICY_DISCOVERY_ONLY: CachePolicy
FALLBACK_REASON_UNSPECIFIED: FallbackReason
FALLBACK_REASON_EXACT_PREFIX_SUFFICIENT: FallbackReason
FALLBACK_REASON_PROVIDER_DISABLED: FallbackReason
FALLBACK_REASON_PROVIDER_TIMEOUT: FallbackReason
FALLBACK_REASON_PROVIDER_ERROR: FallbackReason
FALLBACK_REASON_PROVIDER_MISS: FallbackReason
FALLBACK_REASON_LOW_SIMILARITY: FallbackReason
FALLBACK_REASON_LOW_REUSE_TOKENS: FallbackReason
FALLBACK_REASON_NAMESPACE_MISMATCH: FallbackReason
FALLBACK_REASON_UNSUPPORTED_REQUEST: FallbackReason
FALLBACK_REASON_NOT_PREFIX_ANCHORED: FallbackReason
FALLBACK_REASON_NOT_BLOCK_ALIGNED: FallbackReason
FALLBACK_REASON_DONOR_STALE: FallbackReason
FALLBACK_REASON_ALLOCATION_FAILED: FallbackReason
FALLBACK_REASON_LOAD_FAILED: FallbackReason
FALLBACK_REASON_INVALID_BLOCKS: FallbackReason
FALLBACK_REASON_RECOMPUTE_POLICY: FallbackReason
MODE_UNSPECIFIED: Mode
MODE_DISABLED: Mode
MODE_DISCOVERY_ONLY: Mode
MODE_MATERIALIZE: Mode

class Namespace(_message.Message):
    __slots__ = ("model", "model_revision", "tokenizer", "tokenizer_revision", "tokenization", "chat_template", "dtype", "kv_cache_dtype", "block_size", "kv_layout", "attention_backend", "tensor_parallel_size", "pipeline_parallel_size", "adapter", "rope_scaling", "multimodal_hashes", "tenant_key")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    MODEL_REVISION_FIELD_NUMBER: _ClassVar[int]
    TOKENIZER_FIELD_NUMBER: _ClassVar[int]
    TOKENIZER_REVISION_FIELD_NUMBER: _ClassVar[int]
    TOKENIZATION_FIELD_NUMBER: _ClassVar[int]
    CHAT_TEMPLATE_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    KV_CACHE_DTYPE_FIELD_NUMBER: _ClassVar[int]
    BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    KV_LAYOUT_FIELD_NUMBER: _ClassVar[int]
    ATTENTION_BACKEND_FIELD_NUMBER: _ClassVar[int]
    TENSOR_PARALLEL_SIZE_FIELD_NUMBER: _ClassVar[int]
    PIPELINE_PARALLEL_SIZE_FIELD_NUMBER: _ClassVar[int]
    ADAPTER_FIELD_NUMBER: _ClassVar[int]
    ROPE_SCALING_FIELD_NUMBER: _ClassVar[int]
    MULTIMODAL_HASHES_FIELD_NUMBER: _ClassVar[int]
    TENANT_KEY_FIELD_NUMBER: _ClassVar[int]
    model: str
    model_revision: str
    tokenizer: str
    tokenizer_revision: str
    tokenization: str
    chat_template: str
    dtype: str
    kv_cache_dtype: str
    block_size: int
    kv_layout: str
    attention_backend: str
    tensor_parallel_size: int
    pipeline_parallel_size: int
    adapter: str
    rope_scaling: str
    multimodal_hashes: _containers.RepeatedScalarFieldContainer[str]
    tenant_key: str
    def __init__(self, model: _Optional[str] = ..., model_revision: _Optional[str] = ..., tokenizer: _Optional[str] = ..., tokenizer_revision: _Optional[str] = ..., tokenization: _Optional[str] = ..., chat_template: _Optional[str] = ..., dtype: _Optional[str] = ..., kv_cache_dtype: _Optional[str] = ..., block_size: _Optional[int] = ..., kv_layout: _Optional[str] = ..., attention_backend: _Optional[str] = ..., tensor_parallel_size: _Optional[int] = ..., pipeline_parallel_size: _Optional[int] = ..., adapter: _Optional[str] = ..., rope_scaling: _Optional[str] = ..., multimodal_hashes: _Optional[_Iterable[str]] = ..., tenant_key: _Optional[str] = ...) -> None: ...

class NamespaceSelector(_message.Message):
    __slots__ = ("namespace", "namespace_id")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_ID_FIELD_NUMBER: _ClassVar[int]
    namespace: Namespace
    namespace_id: str
    def __init__(self, namespace: _Optional[_Union[Namespace, _Mapping]] = ..., namespace_id: _Optional[str] = ...) -> None: ...

class Owner(_message.Message):
    __slots__ = ("worker_id", "data_parallel_rank")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    DATA_PARALLEL_RANK_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    data_parallel_rank: int
    def __init__(self, worker_id: _Optional[str] = ..., data_parallel_rank: _Optional[int] = ...) -> None: ...

class Lease(_message.Message):
    __slots__ = ("id", "ttl_ms", "deadline_unix_ms")
    ID_FIELD_NUMBER: _ClassVar[int]
    TTL_MS_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    id: bytes
    ttl_ms: int
    deadline_unix_ms: int
    def __init__(self, id: _Optional[bytes] = ..., ttl_ms: _Optional[int] = ..., deadline_unix_ms: _Optional[int] = ...) -> None: ...
