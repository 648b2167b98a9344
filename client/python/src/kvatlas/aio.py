"""The client for asyncio: the same calls over the same connection, awaited."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

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


class AsyncClient:
    """`Client` for asyncio: same arguments, same answers. Bound to no event loop.

    It waits for grpcio's threads rather than using grpc.aio, whose state outlives neither a fork
    nor an event loop.
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
    ) -> None:
        """As `Client`."""
        self._session = Session(address, token_file, tls_ca, breaker)
        self._lookup_timeout_s = lookup_timeout_s
        self._control_timeout_s = control_timeout_s

    async def connect(self, timeout_s: float = 1.0) -> bool:
        """Connects now, so that the first look-up need not. False: not within the time."""
        try:
            ask, way = calls.status(), self._session.way()
            await _call(way, ask, timeout_s, self._session.metadata(), wait_for_ready=True)
        except Exception as error:
            return KvatlasError.of(error).code in {"unauthenticated", "permission_denied"}
        return True

    async def close(self) -> None:
        """Ends the use of the connection; look-ups are then misses."""
        self._session.close()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    # Look-ups: no exception, whatever the server or the network does.

    async def find_donor(
        self,
        tokens: TokenArray,
        namespace: Namespace | str,
        *,
        timeout_s: float | None = None,
        **options: Unpack[FindOptions],
    ) -> Found | Miss:
        """Whose cached prompt can this one borrow from? Takes the whole prompt."""
        return await self._look_up(lambda: calls.find_donor(tokens, namespace, options), timeout_s)

    async def get_manifest(
        self,
        prefix_hash: str,
        *,
        k: int,
        timeout_s: float | None = None,
        **options: Unpack[ManifestOptions],
    ) -> Manifest | Miss:
        """Which blocks of a cached prefix to read. On a miss: every one."""
        return await self._look_up(lambda: calls.get_manifest(prefix_hash, k, options), timeout_s)

    async def find_workers(
        self,
        tokens: TokenArray,
        namespace: Namespace | str | None = None,
        *,
        pick: bool = False,
        request_id: str = "",
        timeout_s: float | None = None,
    ) -> Workers | Miss:
        """Which worker holds the prompt, and, when asked to pick, where it should go."""
        return await self._look_up(
            lambda: calls.find_workers(tokens, namespace, pick, request_id), timeout_s
        )

    # Leases: any failure is a no.

    async def validate(
        self, lease_id: bytes, holder: str = "", *, timeout_s: float | None = None
    ) -> tuple[str, int]:
        """What a lease is now, and the milliseconds left of it. Only "valid" is a yes."""
        answer = await self._look_up(lambda: calls.validate(lease_id, holder), timeout_s)
        return ("stale", 0) if isinstance(answer, Miss) else answer

    async def renew(
        self, lease_id: bytes, holder: str, ttl_ms: int = 0, *, timeout_s: float | None = None
    ) -> str:
        """Moves the deadline of a donor lease, from now; done only if the answer is "valid"."""
        answer = await self._look_up(lambda: calls.renew(lease_id, holder, ttl_ms), timeout_s)
        return "stale" if isinstance(answer, Miss) else answer

    async def release(
        self, lease_id: bytes, holder: str, *, timeout_s: float | None = None
    ) -> bool:
        """Whether this call ended the lease. If it fails, the lease ends at its deadline."""
        answer = await self._look_up(lambda: calls.release(lease_id, holder), timeout_s)
        return False if isinstance(answer, Miss) else answer

    # Control calls: KvatlasError says what went wrong.

    async def announce_owner(
        self, worker_id: str, generation: int, *, dp_rank: int = 0, ttl_ms: int = 0
    ) -> OwnerState:
        """Says that an owner lives. `generation` is its start time in milliseconds since 1970."""
        owner = Owner(worker_id, dp_rank)
        return await self._control(calls.announce_owner(owner, generation, ttl_ms))

    async def register_donor(self, donor: Donor) -> Registration:
        """Returns when it is on the disk and searchable, or why it was not kept."""
        return await self._control(calls.register_donor(donor))

    async def remove_donors(
        self,
        donor_ids: Sequence[str] | None = None,
        *,
        namespace: Namespace | str | None = None,
        owner: Owner | None = None,
    ) -> int:
        """By ids of a namespace, by namespace, or by owner. Their leases end."""
        return await self._control(calls.remove_donors(donor_ids, namespace, owner))

    async def report_reuse(
        self,
        request_id: str,
        provenance: str,
        **details: Unpack[calls.ReuseDetails],
    ) -> bool:
        """Says what became of a nomination, and releases its lease. Whether it ended one."""
        return await self._control(calls.report_reuse(request_id, provenance, **details))

    async def finish_requests(self, request_ids: Sequence[str]) -> int:
        """Says that requests are done, so that they weigh no longer on their workers."""
        return await self._control(calls.finish_requests(request_ids))

    async def put_prior(
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
            metadata = self._session.metadata()
            response = await _answer(upload.future, parts, timeout_s, metadata)
        except Exception as error:
            raise KvatlasError.of(error) from None
        return calls.stored_prior(response)

    async def put_query(self, query_hash: str, query: QueryVectors, ttl_ms: int = 0) -> int:
        """Keeps a query for manifests scored online. Until when, in milliseconds since 1970."""
        return await self._control(calls.put_query(query_hash, query, ttl_ms))

    async def set_mode(
        self, mode: str, namespace: Namespace | str | None = None, gates: Gates | None = None
    ) -> str:
        """The server's mode, or a namespace's: "disabled", "discovery_only", "materialize"."""
        return await self._control(calls.set_mode(mode, namespace, gates))

    async def status(self) -> Status:
        """How the server stands."""
        return await self._control(calls.status())

    async def _look_up(
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
                response = await _call(way, ask, timeout, metadata, way.breaker.open)
            except Exception as error:
                return way.failed(error, time.monotonic())
            way.breaker.succeeded()
            return ask.answer(response, sent)
        except Exception as error:
            return miss(error)

    async def _control(self, ask: Ask[_Answer]) -> _Answer:
        sent = time.monotonic()
        try:
            metadata = self._session.metadata()
            response = await _call(self._session.way(), ask, self._control_timeout_s, metadata)
            return ask.answer(response, sent)
        except Exception as error:
            raise KvatlasError.of(error) from None


async def _call(
    way: Way, ask: Ask[Any], timeout_s: float, metadata: Metadata, wait_for_ready: bool = False
) -> bytes:
    """Waits for a connection, if so told: some grpcio releases connect only while a call waits."""
    call = way.connection.unary(ask.method.path)
    start = functools.partial(call.future, wait_for_ready=wait_for_ready)
    return await _answer(start, ask.request.SerializeToString(), timeout_s, metadata)


async def _answer(start: Any, request: Any, timeout_s: float, metadata: Metadata) -> bytes:
    """Waits without a thread of its own. A cancelled wait cancels the call."""
    loop = asyncio.get_running_loop()
    done = loop.create_future()

    def finish() -> None:
        if not done.done():
            done.set_result(None)

    def wake(call: Any) -> None:
        forks.end_call(call.cancel)
        # The loop may have been closed meanwhile; then nobody waits.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(finish)

    forks.begin_call(timeout_s)
    try:
        call = start(request, timeout=timeout_s, metadata=metadata)
    except BaseException:
        forks.end_call()
        raise
    forks.may_cancel(call.cancel)
    call.add_done_callback(wake)
    try:
        await done
    except asyncio.CancelledError:
        call.cancel()
        raise
    answer: bytes = call.result()
    return answer
