"""Who this engine is to the service: its name, and since when."""

from __future__ import annotations

import dataclasses
import functools
import os
import socket
import time

WORKER_VARIABLE = "KVATLAS_WORKER_ID"
ID_BYTES_MAX = 256


@dataclasses.dataclass(frozen=True)
class Identity:
    """An engine process. Both connectors of one process, scheduler's and worker's, are one."""

    worker_id: str
    # Its start in milliseconds since 1970.
    generation: int

    @property
    def name(self) -> str:
        """No other process, nor this one after a restart, has it."""
        return f"{self.worker_id}/{self.generation}"

    def global_id(self, request_id: str) -> str:
        """A request's id among all engines; empty when it would be too long to be sent."""
        full = f"{self.name}/{request_id}"
        return full if len(full.encode()) <= ID_BYTES_MAX else ""

    def local_id(self, global_id: str) -> str:
        """The engine's own id again; another engine's stays as it is."""
        return global_id.removeprefix(f"{self.name}/")


def identity() -> Identity:
    """This process's: KVATLAS_WORKER_ID, else host and process."""
    return _identity(os.getpid())


@functools.cache
def _identity(pid: int) -> Identity:
    worker_id = os.environ.get(WORKER_VARIABLE) or f"{socket.gethostname()}-{pid}"
    return Identity(worker_id, time.time_ns() // 1_000_000)
