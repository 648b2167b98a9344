"""What both clients share: where the server is, and this process's way to it."""

from __future__ import annotations

import dataclasses
import os
import pathlib
from typing import Any

import grpc

from kvatlas import channel
from kvatlas.answers import Contradiction, Miss
from kvatlas.breaker import Breaker
from kvatlas.channel import Connection, Target
from kvatlas.errors import KvatlasError

LOOKUP_TIMEOUT_S = 0.005
CONTROL_TIMEOUT_S = 5.0
UPLOAD_TIMEOUT_S = 120.0

# What goes with a call besides its message.
Metadata = tuple[tuple[str, str], ...] | None

CIRCUIT_OPEN = Miss(
    "provider_disabled", "circuit open: the server did not answer and is not asked for a moment"
)
# Of the server they say that it was not there, or not in time.
_ABSENT = frozenset({"unavailable", "deadline_exceeded"})


@dataclasses.dataclass(frozen=True)
class Way:
    """How one process reaches the server."""

    pid: int
    connection: Connection
    breaker: Breaker

    def failed(self, error: Exception, now_s: float) -> Miss:
        """Counts a look-up that failed, and says what it is for the engine."""
        failure = KvatlasError.of(error)
        if failure.code in _ABSENT:
            self.breaker.failed(now_s)
        elif isinstance(error, grpc.RpcError):
            # An error status is an answer too.
            self.breaker.succeeded()
        return miss(failure)


class Session:
    """A server as one client sees it. In a forked child it begins anew at the next call."""

    def __init__(
        self,
        address: str | None,
        token_file: str | None,
        tls_ca: str | None,
        breaker: Breaker | None,
    ) -> None:
        named = address or os.environ.get("KVATLAS_ADDRESS") or channel.ADDRESS_DEFAULT
        self.target = Target(named, tls_ca)
        self._token = _Token(token_file) if token_file else None
        self._closed = False
        self._way = self._new_way(breaker or Breaker())

    def way(self) -> Way:
        """This process's."""
        way = self._way
        if way.pid != os.getpid() or self._closed:
            if self._closed:
                raise KvatlasError("cancelled", "the client is closed")
            way = self._way = self._new_way(way.breaker.fresh())
        return way

    def metadata(self) -> Metadata:
        """What goes with every call."""
        return self._token.metadata() if self._token else None

    def close(self) -> None:
        """Ends this client's use of the connection; closing twice changes nothing."""
        self._closed = True
        channel.release(self.target, self)

    def _new_way(self, breaker: Breaker) -> Way:
        return Way(os.getpid(), channel.acquire(self.target, self), breaker)


def miss(error: Exception) -> Miss:
    """The miss that a failed look-up is."""
    if isinstance(error, Contradiction):
        return Miss("provider_error", f"the server's answer is not valid: {error}")
    failure = KvatlasError.of(error)
    reason = {
        "deadline_exceeded": "provider_timeout",
        "invalid_argument": "unsupported_request",
        "not_found": "provider_miss",
    }.get(failure.code, "provider_error")
    return Miss(reason, str(failure))


class _Token:
    """A bearer token in a file, read again whenever the file has changed."""

    def __init__(self, path: str) -> None:
        self._path = pathlib.Path(path)
        self._seen: tuple[Any, ...] | None = None
        self._metadata: tuple[tuple[str, str], ...] = ()

    def metadata(self) -> tuple[tuple[str, str], ...]:
        try:
            stat = self._path.stat()
            seen = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
            if seen != self._seen:
                token = self._path.read_text(encoding="ascii").strip()
                self._metadata = (("authorization", f"Bearer {token}"),)
                self._seen = seen
        except (OSError, ValueError) as error:
            # While it is being replaced, the token before is still the best guess.
            if self._seen is None:
                told = f"the token file cannot be read: {type(error).__name__}"
                raise KvatlasError("unauthenticated", told) from None
        return self._metadata
