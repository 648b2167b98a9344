from kvatlas.v1 import common_pb2 as _common_pb2
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class LeaseState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    LEASE_STATE_UNSPECIFIED: _ClassVar[LeaseState]
    LEASE_STATE_VALID: _ClassVar[LeaseState]
    LEASE_STATE_EXPIRED: _ClassVar[LeaseState]
    LEASE_STATE_STALE: _ClassVar[LeaseState]
    LEASE_STATE_UNKNOWN: _ClassVar[LeaseState]
    LEASE_STATE_NOT_HOLDER: _ClassVar[LeaseState]
LEASE_STATE_UNSPECIFIED: LeaseState
LEASE_STATE_VALID: LeaseState
LEASE_STATE_EXPIRED: LeaseState
LEASE_STATE_STALE: LeaseState
LEASE_STATE_UNKNOWN: LeaseState
LEASE_STATE_NOT_HOLDER: LeaseState

class ValidateRequest(_message.Message):
    __slots__ = ("lease_id", "holder")
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    HOLDER_FIELD_NUMBER: _ClassVar[int]
    lease_id: bytes
    holder: str
    def __init__(self, lease_id: _Optional[bytes] = ..., holder: _Optional[str] = ...) -> None: ...

class ValidateResponse(_message.Message):
    __slots__ = ("state", "remaining_ms")
    STATE_FIELD_NUMBER: _ClassVar[int]
    REMAINING_MS_FIELD_NUMBER: _ClassVar[int]
    state: LeaseState
    remaining_ms: int
    def __init__(self, state: _Optional[_Union[LeaseState, str]] = ..., remaining_ms: _Optional[int] = ...) -> None: ...

class RenewRequest(_message.Message):
    __slots__ = ("lease_id", "holder", "ttl_ms")
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    HOLDER_FIELD_NUMBER: _ClassVar[int]
    TTL_MS_FIELD_NUMBER: _ClassVar[int]
    lease_id: bytes
    holder: str
    ttl_ms: int
    def __init__(self, lease_id: _Optional[bytes] = ..., holder: _Optional[str] = ..., ttl_ms: _Optional[int] = ...) -> None: ...

class RenewResponse(_message.Message):
    __slots__ = ("state", "lease")
    STATE_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    state: LeaseState
    lease: _common_pb2.Lease
    def __init__(self, state: _Optional[_Union[LeaseState, str]] = ..., lease: _Optional[_Union[_common_pb2.Lease, _Mapping]] = ...) -> None: ...

class ReleaseRequest(_message.Message):
    __slots__ = ("lease_id", "holder")
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    HOLDER_FIELD_NUMBER: _ClassVar[int]
    lease_id: bytes
    holder: str
    def __init__(self, lease_id: _Optional[bytes] = ..., holder: _Optional[str] = ...) -> None: ...

class ReleaseResponse(_message.Message):
    __slots__ = ("released", "state")
    RELEASED_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    released: bool
    state: LeaseState
    def __init__(self, released: bool = ..., state: _Optional[_Union[LeaseState, str]] = ...) -> None: ...
