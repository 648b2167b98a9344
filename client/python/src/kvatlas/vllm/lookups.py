"""Look-ups beside the scheduler: a bounded queue, a few threads, and a ticket for each."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

QUEUE_MAX = 256
THREADS = 4

Answer = TypeVar("Answer")
_log = logging.getLogger("kvatlas.vllm")


class Ticket(Generic[Answer]):
    """One answer that will come, and one taker: either it is taken or it was given up before."""

    __slots__ = ("_abandoned", "_answer", "_lock")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._answer: Answer | None = None
        self._abandoned = False

    @property
    def answer(self) -> Answer | None:
        """None: not yet."""
        return self._answer

    def deliver(self, answer: Answer) -> bool:
        """False: nobody waits for it any more, so that what it holds must be given back."""
        with self._lock:
            if not self._abandoned:
                self._answer = answer
            return not self._abandoned

    def abandon(self) -> Answer | None:
        """Gives up waiting. The answer, when it was faster."""
        with self._lock:
            self._abandoned = True
            return self._answer


class Lookups:
    """Threads that ask the service. Their number bounds the calls in flight."""

    def __init__(self, threads: int = THREADS, queue_max: int = QUEUE_MAX) -> None:
        # Written in C, unlike the bounded one; the scheduler's thread is the only one that puts.
        self._queue: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._queue_max = queue_max
        self._threads = [
            threading.Thread(target=self._run, name=f"kvatlas-lookup-{number}", daemon=True)
            for number in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, work: Callable[[], object]) -> bool:
        """False at once when the queue is full."""
        if self._queue.qsize() >= self._queue_max:
            return False
        self._queue.put(work)
        return True

    def close(self, timeout_s: float = 1.0) -> None:
        """Lets the threads end after what is queued, and waits so long for them."""
        deadline_s = time.monotonic() + timeout_s
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            thread.join(max(0.0, deadline_s - time.monotonic()))

    def _run(self) -> None:
        while (work := self._queue.get()) is not None:
            try:
                work()
            except Exception:
                # The work answers its ticket whatever happens; this is for our own bugs.
                _log.exception("a look-up failed")
