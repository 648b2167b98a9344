from kvatlas.v1 import common_pb2 as _common_pb2
from kvatlas.v1 import donors_pb2 as _donors_pb2
from kvatlas.v1 import events_pb2 as _events_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class GetStatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetStatusResponse(_message.Message):
    __slots__ = ("version", "epoch", "uptime_ms", "mode", "priors", "donors", "donors_max", "donor_tokens", "donor_tokens_max", "namespaces", "leases_held", "leases_max", "owners_live", "calls_in_flight", "calls_in_flight_max", "damaged_records", "gates", "scoring_device")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    UPTIME_MS_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    PRIORS_FIELD_NUMBER: _ClassVar[int]
    DONORS_FIELD_NUMBER: _ClassVar[int]
    DONORS_MAX_FIELD_NUMBER: _ClassVar[int]
    DONOR_TOKENS_FIELD_NUMBER: _ClassVar[int]
    DONOR_TOKENS_MAX_FIELD_NUMBER: _ClassVar[int]
    NAMESPACES_FIELD_NUMBER: _ClassVar[int]
    LEASES_HELD_FIELD_NUMBER: _ClassVar[int]
    LEASES_MAX_FIELD_NUMBER: _ClassVar[int]
    OWNERS_LIVE_FIELD_NUMBER: _ClassVar[int]
    CALLS_IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    CALLS_IN_FLIGHT_MAX_FIELD_NUMBER: _ClassVar[int]
    DAMAGED_RECORDS_FIELD_NUMBER: _ClassVar[int]
    GATES_FIELD_NUMBER: _ClassVar[int]
    SCORING_DEVICE_FIELD_NUMBER: _ClassVar[int]
    version: str
    epoch: int
    uptime_ms: int
    mode: _common_pb2.Mode
    priors: int
    donors: int
    donors_max: int
    donor_tokens: int
    donor_tokens_max: int
    namespaces: int
    leases_held: int
    leases_max: int
    owners_live: int
    calls_in_flight: int
    calls_in_flight_max: int
    damaged_records: int
    gates: _donors_pb2.Gates
    scoring_device: str
    def __init__(self, version: _Optional[str] = ..., epoch: _Optional[int] = ..., uptime_ms: _Optional[int] = ..., mode: _Optional[_Union[_common_pb2.Mode, str]] = ..., priors: _Optional[int] = ..., donors: _Optional[int] = ..., donors_max: _Optional[int] = ..., donor_tokens: _Optional[int] = ..., donor_tokens_max: _Optional[int] = ..., namespaces: _Optional[int] = ..., leases_held: _Optional[int] = ..., leases_max: _Optional[int] = ..., owners_live: _Optional[int] = ..., calls_in_flight: _Optional[int] = ..., calls_in_flight_max: _Optional[int] = ..., damaged_records: _Optional[int] = ..., gates: _Optional[_Union[_donors_pb2.Gates, _Mapping]] = ..., scoring_device: _Optional[str] = ...) -> None: ...

class ListNamespacesRequest(_message.Message):
    __slots__ = ("page_size", "page_token")
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: str
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class NamespaceStatus(_message.Message):
    __slots__ = ("namespace_id", "namespace", "mode", "mode_is_own", "donors", "donor_tokens", "gates")
    NAMESPACE_ID_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    MODE_IS_OWN_FIELD_NUMBER: _ClassVar[int]
    DONORS_FIELD_NUMBER: _ClassVar[int]
    DONOR_TOKENS_FIELD_NUMBER: _ClassVar[int]
    GATES_FIELD_NUMBER: _ClassVar[int]
    namespace_id: str
    namespace: _common_pb2.Namespace
    mode: _common_pb2.Mode
    mode_is_own: bool
    donors: int
    donor_tokens: int
    gates: _donors_pb2.Gates
    def __init__(self, namespace_id: _Optional[str] = ..., namespace: _Optional[_Union[_common_pb2.Namespace, _Mapping]] = ..., mode: _Optional[_Union[_common_pb2.Mode, str]] = ..., mode_is_own: bool = ..., donors: _Optional[int] = ..., donor_tokens: _Optional[int] = ..., gates: _Optional[_Union[_donors_pb2.Gates, _Mapping]] = ...) -> None: ...

class ListNamespacesResponse(_message.Message):
    __slots__ = ("namespaces", "next_page_token")
    NAMESPACES_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    namespaces: _containers.RepeatedCompositeFieldContainer[NamespaceStatus]
    next_page_token: str
    def __init__(self, namespaces: _Optional[_Iterable[_Union[NamespaceStatus, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class SetModeRequest(_message.Message):
    __slots__ = ("namespace", "mode", "gates")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    GATES_FIELD_NUMBER: _ClassVar[int]
    namespace: _common_pb2.NamespaceSelector
    mode: _common_pb2.Mode
    gates: _donors_pb2.Gates
    def __init__(self, namespace: _Optional[_Union[_common_pb2.NamespaceSelector, _Mapping]] = ..., mode: _Optional[_Union[_common_pb2.Mode, str]] = ..., gates: _Optional[_Union[_donors_pb2.Gates, _Mapping]] = ...) -> None: ...

class SetModeResponse(_message.Message):
    __slots__ = ("mode", "gates")
    MODE_FIELD_NUMBER: _ClassVar[int]
    GATES_FIELD_NUMBER: _ClassVar[int]
    mode: _common_pb2.Mode
    gates: _donors_pb2.Gates
    def __init__(self, mode: _Optional[_Union[_common_pb2.Mode, str]] = ..., gates: _Optional[_Union[_donors_pb2.Gates, _Mapping]] = ...) -> None: ...

class AddEventSourceRequest(_message.Message):
    __slots__ = ("source", "namespace")
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    source: str
    namespace: _common_pb2.Namespace
    def __init__(self, source: _Optional[str] = ..., namespace: _Optional[_Union[_common_pb2.Namespace, _Mapping]] = ...) -> None: ...

class AddEventSourceResponse(_message.Message):
    __slots__ = ("added",)
    ADDED_FIELD_NUMBER: _ClassVar[int]
    added: bool
    def __init__(self, added: bool = ...) -> None: ...

class RemoveEventSourceRequest(_message.Message):
    __slots__ = ("worker_id",)
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    def __init__(self, worker_id: _Optional[str] = ...) -> None: ...

class RemoveEventSourceResponse(_message.Message):
    __slots__ = ("removed_sources", "removed_donors")
    REMOVED_SOURCES_FIELD_NUMBER: _ClassVar[int]
    REMOVED_DONORS_FIELD_NUMBER: _ClassVar[int]
    removed_sources: int
    removed_donors: int
    def __init__(self, removed_sources: _Optional[int] = ..., removed_donors: _Optional[int] = ...) -> None: ...

class ReadWindowRequest(_message.Message):
    __slots__ = ("since_ms", "records_max")
    SINCE_MS_FIELD_NUMBER: _ClassVar[int]
    RECORDS_MAX_FIELD_NUMBER: _ClassVar[int]
    since_ms: int
    records_max: int
    def __init__(self, since_ms: _Optional[int] = ..., records_max: _Optional[int] = ...) -> None: ...

class ReadWindowResponse(_message.Message):
    __slots__ = ("lines",)
    LINES_FIELD_NUMBER: _ClassVar[int]
    lines: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, lines: _Optional[_Iterable[str]] = ...) -> None: ...

class ListEventSourcesRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListEventSourcesResponse(_message.Message):
    __slots__ = ("sources",)
    SOURCES_FIELD_NUMBER: _ClassVar[int]
    sources: _containers.RepeatedCompositeFieldContainer[EventSourceStatus]
    def __init__(self, sources: _Optional[_Iterable[_Union[EventSourceStatus, _Mapping]]] = ...) -> None: ...

class EventSourceStatus(_message.Message):
    __slots__ = ("source", "worker_id", "data_parallel_ranks", "state", "epoch", "first_sequence", "last_sequence", "blocks", "batches", "events", "gaps", "replays", "connections", "connection_failures", "unknown_events", "malformed_events", "undecodable_batches", "refused_batches", "malformed_messages", "outcomes", "dropped_batches")
    class OutcomesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    DATA_PARALLEL_RANKS_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    FIRST_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    LAST_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    BATCHES_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    GAPS_FIELD_NUMBER: _ClassVar[int]
    REPLAYS_FIELD_NUMBER: _ClassVar[int]
    CONNECTIONS_FIELD_NUMBER: _ClassVar[int]
    CONNECTION_FAILURES_FIELD_NUMBER: _ClassVar[int]
    UNKNOWN_EVENTS_FIELD_NUMBER: _ClassVar[int]
    MALFORMED_EVENTS_FIELD_NUMBER: _ClassVar[int]
    UNDECODABLE_BATCHES_FIELD_NUMBER: _ClassVar[int]
    REFUSED_BATCHES_FIELD_NUMBER: _ClassVar[int]
    MALFORMED_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    OUTCOMES_FIELD_NUMBER: _ClassVar[int]
    DROPPED_BATCHES_FIELD_NUMBER: _ClassVar[int]
    source: str
    worker_id: str
    data_parallel_ranks: _containers.RepeatedScalarFieldContainer[int]
    state: _events_pb2.SourceState
    epoch: int
    first_sequence: int
    last_sequence: int
    blocks: int
    batches: int
    events: int
    gaps: int
    replays: int
    connections: int
    connection_failures: int
    unknown_events: int
    malformed_events: int
    undecodable_batches: int
    refused_batches: int
    malformed_messages: int
    outcomes: _containers.ScalarMap[str, int]
    dropped_batches: int
    def __init__(self, source: _Optional[str] = ..., worker_id: _Optional[str] = ..., data_parallel_ranks: _Optional[_Iterable[int]] = ..., state: _Optional[_Union[_events_pb2.SourceState, str]] = ..., epoch: _Optional[int] = ..., first_sequence: _Optional[int] = ..., last_sequence: _Optional[int] = ..., blocks: _Optional[int] = ..., batches: _Optional[int] = ..., events: _Optional[int] = ..., gaps: _Optional[int] = ..., replays: _Optional[int] = ..., connections: _Optional[int] = ..., connection_failures: _Optional[int] = ..., unknown_events: _Optional[int] = ..., malformed_events: _Optional[int] = ..., undecodable_batches: _Optional[int] = ..., refused_batches: _Optional[int] = ..., malformed_messages: _Optional[int] = ..., outcomes: _Optional[_Mapping[str, int]] = ..., dropped_batches: _Optional[int] = ...) -> None: ...
