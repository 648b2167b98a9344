"""Tells the service what happened, in order, beside the scheduler: that the owner lives, donors
registered and removed, what became of nominations."""

from __future__ import annotations

import dataclasses
import logging
import queue
import threading
import time
from collections.abc import Callable
from typing import Any

from kvatlas.errors import KvatlasError

QUEUE_MAX = 4096
OWNER_TTL_MS = 30_000
# Several chances to renew before it runs out.
RENEW_S = OWNER_TTL_MS / 1000 / 4
# A server that has just come back is announced to this soon.
RETRY_S = 0.5
ATTEMPTS_MAX = 3
RETRY_PAUSE_S = 0.05

_log = logging.getLogger("kvatlas.vllm")


@dataclasses.dataclass(frozen=True)
class _Call:
    what: str
    call: Callable[[], Any]
    then: Callable[[Any], None] | None
    failed: Callable[[], None] | None
    of_owner: bool


class Control:
    """One thread. What cannot be delivered is dropped: leases and announcements run out."""

    def __init__(self) -> None:
        self._announce: Callable[[], Any] = lambda: None
        # By time.monotonic().
        self._announce_at = time.monotonic()
        # That it cannot be announced has been logged.
        self._told = False
        self._queue: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._urgent = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kvatlas-control", daemon=True)

    def start(self, announce: Callable[[], Any]) -> None:
        """Begins; `announce` says that the owner lives, and is called again and again."""
        self._announce = announce
        self._thread.start()

    def call(
        self,
        what: str,
        call: Callable[[], Any],
        then: Callable[[Any], None] | None = None,
        failed: Callable[[], None] | None = None,
        *,
        of_owner: bool = False,
    ) -> None:
        """Queues a call. On this thread, `then` gets what it returned, or `failed` is called.

        `of_owner`: never before the service knows that the owner lives, else it fails.
        """
        if self._queue.qsize() < QUEUE_MAX:
            self._queue.put(_Call(what, call, then, failed, of_owner))
            return
        _log.warning("%s is not told to the service: the queue is full", what)
        if failed is not None:
            failed()

    def announce_soon(self) -> None:
        """The service does not seem to know that the owner lives, as after its restart."""
        if not self._urgent.is_set():
            self._urgent.set()
            self.call("announcement", lambda: None)

    def close(self, timeout_s: float = 2.0) -> None:
        """Delivers what is queued, for so long."""
        self._queue.put(None)
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while True:
            self._announce_if_due()
            try:
                item = self._queue.get(timeout=max(0.0, self._announce_at - time.monotonic()))
            except queue.Empty:
                continue
            if item is None:
                return
            self._announce_if_due()
            self._deliver(item)

    def _announce_if_due(self) -> None:
        if time.monotonic() < self._announce_at and not self._urgent.is_set():
            return
        try:
            self._announce_now()
        except KvatlasError as error:
            if not self._told:
                _log.warning("the owner could not be announced: %s", error.code)
            self._told = True
        except Exception:
            _log.exception("the owner could not be announced")
            self._announce_at = time.monotonic() + RENEW_S

    def _announce_now(self) -> None:
        self._urgent.clear()
        self._announce_at = time.monotonic() + RETRY_S
        self._announce()
        self._told = False
        self._announce_at = time.monotonic() + RENEW_S

    def _deliver(self, item: _Call) -> None:
        for attempt in range(ATTEMPTS_MAX):
            try:
                if item.of_owner:
                    # Each time: a server that began anew since the last does not know the owner.
                    self._announce_now()
                result = item.call()
            except KvatlasError as error:
                # Perhaps the server begins anew.
                self._announce_at = min(self._announce_at, time.monotonic() + RETRY_S)
                if error.retryable and attempt < ATTEMPTS_MAX - 1:
                    time.sleep(RETRY_PAUSE_S * (attempt + 1))
                    continue
                _log.info("%s did not reach the service: %s", item.what, error.code)
            except Exception:
                _log.exception("%s failed", item.what)
            else:
                if item.then is not None:
                    item.then(result)
                return
            break
        if item.failed is not None:
            item.failed()
