"""Registers donors beside the engine: a bounded queue, one thread, and the owner's announcement."""

from __future__ import annotations

import logging
import queue
import threading
from enum import Enum

from kvatlas import Client, Donor, KvatlasError, Owner
from kvatlas.semblend.identity import identity

log = logging.getLogger(__name__)

# What waits for the server; one more is dropped.
PENDING_MAX = 256
ANNOUNCEMENT_TTL_MS = 60_000
# A third of it, so that two renewals may fail.
RENEWAL_S = ANNOUNCEMENT_TTL_MS / 3000
ATTEMPTS_MAX = 3
RETRY_S = 0.5


class _Order(Enum):
    CLEAR = "clear"


class Registrar:
    """What it is given happens in order, later. Its thread begins with the first."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._orders: queue.Queue[Donor | _Order] = queue.Queue(PENDING_MAX)
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def put(self, donor: Donor) -> None:
        """Registers a donor; drops it when too many wait."""
        self._order(donor)

    def clear(self) -> None:
        """Removes this engine's donors."""
        self._order(_Order.CLEAR)

    def _order(self, order: Donor | _Order) -> None:
        try:
            self._orders.put_nowait(order)
        except queue.Full:
            log.warning("%d registrations wait already; one is dropped", PENDING_MAX)
            return
        with self._lock:
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(
                    target=self._run, name="kvatlas-registrar", daemon=True
                )
                self._thread.start()

    def _run(self) -> None:
        while True:
            try:
                order = self._orders.get(timeout=RENEWAL_S)
            except queue.Empty:
                self._attempt(None)
                continue
            if not any(self._attempt(order) for _ in range(ATTEMPTS_MAX)):
                log.warning("a donor was given up after %d attempts", ATTEMPTS_MAX)

    def _attempt(self, order: Donor | _Order | None) -> bool:
        """False: once more."""
        try:
            # Each time: a server that began anew does not know the owner.
            who = identity()
            self._client.announce_owner(who.worker_id, who.generation, ttl_ms=ANNOUNCEMENT_TTL_MS)
            if isinstance(order, Donor):
                self._client.register_donor(order)
            elif order is _Order.CLEAR:
                self._client.remove_donors(owner=Owner(who.worker_id))
        except KvatlasError as error:
            log.info("kvatlas: %s", error.code)
            if error.retryable:
                # A thread of its own may wait.
                threading.Event().wait(RETRY_S)
                return False
        except Exception as error:
            log.warning("kvatlas: %s", type(error).__name__)
        return True
