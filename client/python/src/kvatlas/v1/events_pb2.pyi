from kvatlas.v1 import common_pb2 as _common_pb2
from kvatlas.v1 import donors_pb2 as _donors_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class PublishRefusal(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PUBLISH_REFUSAL_UNSPECIFIED: _ClassVar[PublishRefusal]
    PUBLISH_REFUSAL_SUPERSEDED: _ClassVar[PublishRefusal]
    PUBLISH_REFUSAL_TOO_MANY: _ClassVar[PublishRefusal]
    PUBLISH_REFUSAL_FOLLOWED: _ClassVar[PublishRefusal]
    PUBLISH_REFUSAL_RANK_TAKEN: _ClassVar[PublishRefusal]

class SourceState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SOURCE_STATE_UNSPECIFIED: _ClassVar[SourceState]
    SOURCE_STATE_EXACT: _ClassVar[SourceState]
    SOURCE_STATE_DEGRADED: _ClassVar[SourceState]
    SOURCE_STATE_STALE: _ClassVar[SourceState]

class DonorEventOutcome(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DONOR_EVENT_OUTCOME_UNSPECIFIED: _ClassVar[DonorEventOutcome]
    DONOR_EVENT_OUTCOME_APPLIED: _ClassVar[DonorEventOutcome]
    DONOR_EVENT_OUTCOME_DUPLICATE: _ClassVar[DonorEventOutcome]
    DONOR_EVENT_OUTCOME_APPLIED_AFTER_GAP: _ClassVar[DonorEventOutcome]
    DONOR_EVENT_OUTCOME_REFUSED: _ClassVar[DonorEventOutcome]
PUBLISH_REFUSAL_UNSPECIFIED: PublishRefusal
PUBLISH_REFUSAL_SUPERSEDED: PublishRefusal
PUBLISH_REFUSAL_TOO_MANY: PublishRefusal
PUBLISH_REFUSAL_FOLLOWED: PublishRefusal
PUBLISH_REFUSAL_RANK_TAKEN: PublishRefusal
SOURCE_STATE_UNSPECIFIED: SourceState
SOURCE_STATE_EXACT: SourceState
SOURCE_STATE_DEGRADED: SourceState
SOURCE_STATE_STALE: SourceState
DONOR_EVENT_OUTCOME_UNSPECIFIED: DonorEventOutcome
DONOR_EVENT_OUTCOME_APPLIED: DonorEventOutcome
DONOR_EVENT_OUTCOME_DUPLICATE: DonorEventOutcome
DONOR_EVENT_OUTCOME_APPLIED_AFTER_GAP: DonorEventOutcome
DONOR_EVENT_OUTCOME_REFUSED: DonorEventOutcome

class PublishRequest(_message.Message):
    __slots__ = ("owner", "sequence", "payload", "namespace", "replayed", "replay_ended", "can_replay")
    OWNER_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    REPLAYED_FIELD_NUMBER: _ClassVar[int]
    REPLAY_ENDED_FIELD_NUMBER: _ClassVar[int]
    CAN_REPLAY_FIELD_NUMBER: _ClassVar[int]
    owner: _common_pb2.Owner
    sequence: int
    payload: bytes
    namespace: _common_pb2.NamespaceSelector
    replayed: bool
    replay_ended: bool
    can_replay: bool
    def __init__(self, owner: _Optional[_Union[_common_pb2.Owner, _Mapping]] = ..., sequence: _Optional[int] = ..., payload: _Optional[bytes] = ..., namespace: _Optional[_Union[_common_pb2.NamespaceSelector, _Mapping]] = ..., replayed: bool = ..., replay_ended: bool = ..., can_replay: bool = ...) -> None: ...

class PublishResponse(_message.Message):
    __slots__ = ("owner", "applied_sequence", "replay_from", "source_state", "source_epoch", "refusal")
    OWNER_FIELD_NUMBER: _ClassVar[int]
    APPLIED_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    REPLAY_FROM_FIELD_NUMBER: _ClassVar[int]
    SOURCE_STATE_FIELD_NUMBER: _ClassVar[int]
    SOURCE_EPOCH_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    owner: _common_pb2.Owner
    applied_sequence: int
    replay_from: int
    source_state: SourceState
    source_epoch: int
    refusal: PublishRefusal
    def __init__(self, owner: _Optional[_Union[_common_pb2.Owner, _Mapping]] = ..., applied_sequence: _Optional[int] = ..., replay_from: _Optional[int] = ..., source_state: _Optional[_Union[SourceState, str]] = ..., source_epoch: _Optional[int] = ..., refusal: _Optional[_Union[PublishRefusal, str]] = ...) -> None: ...

class FindWorkersRequest(_message.Message):
    __slots__ = ("tokens", "namespace", "pick", "request_id", "items")
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    PICK_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    tokens: _donors_pb2.Tokens
    namespace: _common_pb2.NamespaceSelector
    pick: bool
    request_id: str
    items: _containers.RepeatedCompositeFieldContainer[MultimodalItem]
    def __init__(self, tokens: _Optional[_Union[_donors_pb2.Tokens, _Mapping]] = ..., namespace: _Optional[_Union[_common_pb2.NamespaceSelector, _Mapping]] = ..., pick: bool = ..., request_id: _Optional[str] = ..., items: _Optional[_Iterable[_Union[MultimodalItem, _Mapping]]] = ...) -> None: ...

class MultimodalItem(_message.Message):
    __slots__ = ("identifier", "start", "tokens")
    IDENTIFIER_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    identifier: str
    start: int
    tokens: int
    def __init__(self, identifier: _Optional[str] = ..., start: _Optional[int] = ..., tokens: _Optional[int] = ...) -> None: ...

class WorkerMatch(_message.Message):
    __slots__ = ("owner", "device_blocks", "device_tokens", "lower_tier_blocks", "source_state", "load_blocks", "lower_tier_tokens", "block_size")
    OWNER_FIELD_NUMBER: _ClassVar[int]
    DEVICE_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    DEVICE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    LOWER_TIER_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    SOURCE_STATE_FIELD_NUMBER: _ClassVar[int]
    LOAD_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    LOWER_TIER_TOKENS_FIELD_NUMBER: _ClassVar[int]
    BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    owner: _common_pb2.Owner
    device_blocks: int
    device_tokens: int
    lower_tier_blocks: int
    source_state: SourceState
    load_blocks: int
    lower_tier_tokens: int
    block_size: int
    def __init__(self, owner: _Optional[_Union[_common_pb2.Owner, _Mapping]] = ..., device_blocks: _Optional[int] = ..., device_tokens: _Optional[int] = ..., lower_tier_blocks: _Optional[int] = ..., source_state: _Optional[_Union[SourceState, str]] = ..., load_blocks: _Optional[int] = ..., lower_tier_tokens: _Optional[int] = ..., block_size: _Optional[int] = ...) -> None: ...

class FindWorkersResponse(_message.Message):
    __slots__ = ("workers", "picked", "charged_blocks", "in_flight")
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    PICKED_FIELD_NUMBER: _ClassVar[int]
    CHARGED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    workers: _containers.RepeatedCompositeFieldContainer[WorkerMatch]
    picked: _common_pb2.Owner
    charged_blocks: int
    in_flight: bool
    def __init__(self, workers: _Optional[_Iterable[_Union[WorkerMatch, _Mapping]]] = ..., picked: _Optional[_Union[_common_pb2.Owner, _Mapping]] = ..., charged_blocks: _Optional[int] = ..., in_flight: bool = ...) -> None: ...

class FinishRequestsRequest(_message.Message):
    __slots__ = ("request_ids",)
    REQUEST_IDS_FIELD_NUMBER: _ClassVar[int]
    request_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, request_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class FinishRequestsResponse(_message.Message):
    __slots__ = ("finished",)
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    finished: int
    def __init__(self, finished: _Optional[int] = ...) -> None: ...

class PublishDonorEventsRequest(_message.Message):
    __slots__ = ("event",)
    EVENT_FIELD_NUMBER: _ClassVar[int]
    event: bytes
    def __init__(self, event: _Optional[bytes] = ...) -> None: ...

class PublishDonorEventsResponse(_message.Message):
    __slots__ = ("outcome", "detail")
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    outcome: DonorEventOutcome
    detail: str
    def __init__(self, outcome: _Optional[_Union[DonorEventOutcome, str]] = ..., detail: _Optional[str] = ...) -> None: ...
