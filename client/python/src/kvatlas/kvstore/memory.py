"""Captured KV in this process's memory, the least recently used donor making room."""

from __future__ import annotations

import collections
import threading

from kvatlas.kvstore.record import Pages, ReadError, Record, Wanted, check_wanted


class MemoryStore:
    """At most `bytes_max` of pages. Only the worker that wrote a donor can read it."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._lock = threading.Lock()
        self._bytes = 0
        # Least recently used first.
        self._records: collections.OrderedDict[str, Record] = collections.OrderedDict()

    def write(self, donor_id: str, record: Record) -> list[str]:
        """Keeps the record, and names the donors that made room. ValueError: over the cap."""
        size = record.pages.nbytes
        if size > self._bytes_max:
            raise ValueError(f"{size} bytes, more than the store's {self._bytes_max}")
        evicted = []
        with self._lock:
            self._drop(donor_id)
            while self._bytes + size > self._bytes_max:
                oldest = next(iter(self._records))
                self._drop(oldest)
                evicted.append(oldest)
            self._records[donor_id] = record
            self._bytes += size
        return evicted

    def read(self, donor_id: str, wanted: Wanted) -> Pages:
        """The pages, shared: not to be written to."""
        with self._lock:
            record = self._records.get(donor_id)
            if record is None:
                raise ReadError("missing", "not in memory")
            self._records.move_to_end(donor_id)
        check_wanted(wanted, record.tokens, record.namespace, record.layout, len(record.pages))
        return record.pages[wanted.first : wanted.end]

    def remove(self, donor_id: str) -> None:
        """Forgets a donor; nothing happens when it is not there."""
        with self._lock:
            self._drop(donor_id)

    def _drop(self, donor_id: str) -> None:
        record = self._records.pop(donor_id, None)
        if record is not None:
            self._bytes -= record.pages.nbytes
