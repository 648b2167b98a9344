"""A line of JSON for everything the connector decided: never tokens, text or salts."""

from __future__ import annotations

import json
import logging
import queue
import threading
import time
from pathlib import Path
from typing import Any

QUEUE_MAX = 4096
_log = logging.getLogger("kvatlas.vllm")


class Audit:
    """Appends lines to a file, on a thread of its own. A full queue drops lines and says so."""

    def __init__(self, path: str | None) -> None:
        self._queue: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._dropped = 0
        self._thread: threading.Thread | None = None
        if path:
            # Opened here, so that a path that cannot be written to is refused at the start.
            self._file = Path(path).open("a", encoding="utf-8")  # noqa: SIM115
            self._thread = threading.Thread(target=self._run, name="kvatlas-audit", daemon=True)
            self._thread.start()

    def record(self, event: str, **fields: Any) -> None:
        """Never waits."""
        if self._thread is None:
            return
        if self._queue.qsize() < QUEUE_MAX:
            self._queue.put({"time": time.time(), "event": event, **fields})
        else:
            self._dropped += 1

    def close(self, timeout_s: float = 1.0) -> None:
        """Writes what is left."""
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join(timeout_s)

    def _run(self) -> None:
        with self._file:
            while (line := self._queue.get()) is not None:
                if self._dropped:
                    line["dropped_before"], self._dropped = self._dropped, 0
                try:
                    self._file.write(json.dumps(line, default=str) + "\n")
                    if self._queue.empty():
                        self._file.flush()
                except OSError:
                    _log.warning("the audit file cannot be written to", exc_info=True)
                    return
