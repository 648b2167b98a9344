"""The client for threads: look-ups that never raise, and control calls that say what went wrong."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

import grpc

from kvatlas import calls, forks
from kvatlas.answers import Found, Manifest, Miss, Owner, Workers
from kvatlas.breaker import Breaker
from kvatlas.calls import (
    Ask,
    Donor,
    FindOptions,
    Gates,
    ManifestOptions,
    OwnerState,
    Registration,
    Status,
    StoredPrior,
    TokenArray,
)
from kvatlas.errors import KvatlasError
from kvatlas.namespace import Namespace
from kvatlas.session import (
    CIRCUIT_OPEN,
    CONTROL_TIMEOUT_S,
    LOOKUP_TIMEOUT_S,
    UPLOAD_TIMEOUT_S,
    Metadata,
    Session,
    Way,
    miss,
)
from kvatlas.v1.routing_pb2 import QueryVectors

if TYPE_CHECKING:
    from typing_extensions import Unpack

_Answer = TypeVar("_Answer")
# So long after its deadline a call is given up that has not ended by itself.
LATE_S_MAX = 0.002


class Client:
    """One handle to one server, for any number of threads, also in forked children.

    The clients of a process share a connection. It is made at the first call and again whenever it
    has broken; the first look-up pays for it unless `connect` was called before.
    """

    def __init__(
        self,
        address: str | None = None,
        *,
        lookup_timeout_s: float = LOOKUP_TIMEOUT_S,
        control_timeout_s: float = CONTROL_TIMEOUT_S,
        token_file: str | None = None,
        tls_ca: str | None = None,
        breaker: Breaker | None = None,
        punctual: bool = False,
    ) -> None:
        """`address` is host:port or unix:PATH; without it KVATLAS_ADDRESS, else 127.0.0.1:50051.

        `token_file` holds a bearer token, and is read again when it changes. `tls_ca` is a file of
        certificates to trust; without it there is no TLS.

        A punctual client's look-ups end at their deadline also where a server hangs and its
        connection is full. That takes grpcio a thread, some 70 us a call.
        """
        self._session = Session(address, token_file, tls_ca, breaker)
        self._lookup_timeout_s = lookup_timeout_s
        self._control_timeout_s = control_timeout_s
        self._punctual = punctual

    def connect(self, timeout_s: float = 1.0) -> bool:
        """Connects now, so that the first look-up need not. False: not within the time."""
        try:
            ask, way = calls.status(), self._session.way()
            _call(way, ask, timeout_s, self._session.metadata(), wait_for_ready=True)
        except Exception as error:
            return KvatlasError.of(error).code in {"unauthenticated", "permission_denied"}
        return True

    def close(self) -> None:
        """Ends the use of the connection; look-ups are then misses."""
        self._session.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # Look-ups: no exception, whatever the server or the network does.

    def find_donor(
        self,
        tokens: TokenArray,
        namespace: Namespace | str,
        *,
        timeout_s: float | None = None,
        **options: Unpack[FindOptions],
    ) -> Found | Miss:
        """Whose cached prompt can this one borrow from? Takes the whole prompt."""
        return self._look_up(lambda: calls.find_donor(tokens, namespace, options), timeout_s)

    def get_manifest(
        self,
        prefix_hash: str,
        *,
        k: int,
        timeout_s: float | None = None,
        **options: Unpack[ManifestOptions],
    ) -> Manifest | Miss:
        """Which blocks of a cached prefix to read. On a miss: every one."""
        return self._look_up(lambda: calls.get_manifest(prefix_hash, k, options), timeout_s)

    def find_workers(
        self,
        tokens: TokenArray,
        namespace: Namespace | str | None = None,
        *,
        pick: bool = False,
        request_id: str = "",
        timeout_s: float | None = None,
    ) -> Workers | Miss:
        """Which worker holds the prompt, and, when asked to pick, where it should go."""
        return self._look_up(
            lambda: calls.find_workers(tokens, namespace, pick, request_id), timeout_s
        )

    # Leases: any failure is a no.

    def validate(
        self, lease_id: bytes, holder: str = "", *, timeout_s: float | None = None
    ) -> tuple[str, int]:
        """What a lease is now, and the milliseconds left of it. Only "valid" is a yes."""
        answer = self._look_up(lambda: calls.validate(lease_id, holder), timeout_s)
        return ("stale", 0) if isinstance(answer, Miss) else answer

    def renew(
        self, lease_id: bytes, holder: str, ttl_ms: int = 0, *, timeout_s: float | None = None
    ) -> str:
        """Moves the deadline of a donor lease, from now; done only if the answer is "valid"."""
        answer = self._look_up(lambda: calls.renew(lease_id, holder, ttl_ms), timeout_s)
        return "stale" if isinstance(answer, Miss) else answer

    def release(self, lease_id: bytes, holder: str, *, timeout_s: float | None = None) -> bool:
        """Whether this call ended the lease. If it fails, the lease ends at its deadline."""
        answer = self._look_up(lambda: calls.release(lease_id, holder), timeout_s)
        return False if isinstance(answer, Miss) else answer

    # Control calls: KvatlasError says what went wrong.

    def announce_owner(
        self, worker_id: str, generation: int, *, dp_rank: int = 0, ttl_ms: int = 0
    ) -> OwnerState:
        """Says that an owner lives. `generation` is its start time in milliseconds since 1970."""
        return self._control(calls.announce_owner(Owner(worker_id, dp_rank), generation, ttl_ms))

    def register_donor(self, donor: Donor) -> Registration:
        """Returns when it is on the disk and searchable, or why it was not kept."""
        return self._control(calls.register_donor(donor))

    def remove_donors(
        self,
        donor_ids: Sequence[str] | None = None,
        *,
        namespace: Namespace | str | None = None,
        owner: Owner | None = None,
    ) -> int:
        """By ids of a namespace, by namespace, or by owner. Their leases end."""
        return self._control(calls.remove_donors(donor_ids, namespace, owner))

    def report_reuse(
        self,
        request_id: str,
        provenance: str,
        **details: Unpack[calls.ReuseDetails],
    ) -> bool:
        """Says what became of a nomination, and releases its lease. Whether it ended one."""
        return self._control(calls.report_reuse(request_id, provenance, **details))

    def finish_requests(self, request_ids: Sequence[str]) -> int:
        """Says that requests are done, so that they weigh no longer on their workers."""
        return self._control(calls.finish_requests(request_ids))

    def put_prior(
        self,
        prior: bytes | str | os.PathLike[str],
        prefix_hash: str,
        *,
        timeout_s: float = UPLOAD_TIMEOUT_S,
        **about: Unpack[calls.PriorOptions],
    ) -> StoredPrior:
        """Uploads a `.pt` or safetensors file, by its path or as bytes."""
        parts = calls.prior_parts(prior, prefix_hash, **about)
        try:
            upload = self._session.way().connection.upload(calls.PUT_PRIOR.path)
            response = _in_time(upload, parts, timeout_s, metadata=self._session.metadata())
        except Exception as error:
            raise KvatlasError.of(error) from None
        return calls.stored_prior(response)

    def put_query(self, query_hash: str, query: QueryVectors, ttl_ms: int = 0) -> int:
        """Keeps a query for manifests scored online. Until when, in milliseconds since 1970."""
        return self._control(calls.put_query(query_hash, query, ttl_ms))

    def set_mode(
        self, mode: str, namespace: Namespace | str | None = None, gates: Gates | None = None
    ) -> str:
        """The server's mode, or a namespace's: "disabled", "discovery_only", "materialize"."""
        return self._control(calls.set_mode(mode, namespace, gates))

    def status(self) -> Status:
        """How the server stands."""
        return self._control(calls.status())

    def _look_up(
        self, prepare: Callable[[], Ask[_Answer] | Miss], timeout_s: float | None
    ) -> _Answer | Miss:
        try:
            ask = prepare()
            if isinstance(ask, Miss):
                return ask
            way = self._session.way()
            sent = time.monotonic()
            if not way.breaker.allows(sent):
                return CIRCUIT_OPEN
            timeout = self._lookup_timeout_s if timeout_s is None else timeout_s
            metadata = self._session.metadata()
            try:
                probes = way.breaker.open
                response = _call(way, ask, timeout, metadata, probes, punctual=self._punctual)
            except Exception as error:
                return way.failed(error, time.monotonic())
            way.breaker.succeeded()
            return ask.answer(response, sent)
        except Exception as error:
            return miss(error)

    def _control(self, ask: Ask[_Answer]) -> _Answer:
        sent = time.monotonic()
        try:
            metadata = self._session.metadata()
            response = _call(self._session.way(), ask, self._control_timeout_s, metadata)
            return ask.answer(response, sent)
        except Exception as error:
            raise KvatlasError.of(error) from None


def _call(
    way: Way,
    ask: Ask[Any],
    timeout_s: float,
    metadata: Metadata,
    wait_for_ready: bool = False,
    *,
    punctual: bool = True,
) -> bytes:
    """Waits for a connection, if so told: some grpcio releases connect only while a call waits."""
    call = way.connection.unary(ask.method.path)
    request = ask.request.SerializeToString()
    how = {"metadata": metadata, "wait_for_ready": wait_for_ready}
    if punctual or timeout_s > forks.FORK_WAIT_S_MAX:
        return _in_time(call, request, timeout_s, **how)
    forks.begin_call(timeout_s)
    try:
        answer: bytes = call(request, timeout=timeout_s, **how)
    finally:
        forks.end_call()
    return answer


def _in_time(call: Any, request: Any, timeout_s: float, **how: Any) -> bytes:
    """Ends at the deadline whatever the server does, and a fork can end it before.

    grpcio's own wait goes on while a server that hangs does not take the call's bytes.
    """
    forks.begin_call(timeout_s)
    try:
        going = call.future(request, timeout=timeout_s, **how)
        forks.may_cancel(going.cancel)
        going.add_done_callback(lambda ended: forks.end_call(ended.cancel))
    except BaseException:
        forks.end_call()
        raise
    try:
        answer: bytes = going.result(timeout_s + LATE_S_MAX)
    except grpc.FutureTimeoutError:
        going.cancel()
        raise KvatlasError("deadline_exceeded", "the server does not take the call") from None
    except BaseException:
        going.cancel()
        raise
    return answer
