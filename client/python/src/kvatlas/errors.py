"""What control calls raise. Look-ups and leases never do."""

from __future__ import annotations

import grpc


class InvalidRequest(ValueError):
    """A request that the server would refuse. Its text never repeats a value."""


_RETRYABLE = frozenset({"unavailable", "deadline_exceeded", "resource_exhausted", "aborted"})


class KvatlasError(Exception):
    """A call that did not get its answer. Its text never holds tokens, prompts or secrets."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}" if message else code)
        # The gRPC status in lower case, such as "invalid_argument" or "unavailable".
        self.code = code
        # Whether the same call may succeed later.
        self.retryable = code in _RETRYABLE

    @classmethod
    def of(cls, error: BaseException) -> KvatlasError:
        """Of what grpcio raises, or of anything else, of which only the type is told."""
        if isinstance(error, KvatlasError):
            return error
        if isinstance(error, grpc.RpcError) and isinstance(error, grpc.Call):
            return cls(error.code().name.lower(), error.details() or "")
        if isinstance(error, grpc.FutureCancelledError):
            return cls("aborted", "this process was forked while the call was under way")
        return cls("internal", type(error).__name__)
