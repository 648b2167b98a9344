"""A service that answers late: a proxy between two Unix sockets that holds back what comes back."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from pathlib import Path

CHUNK_BYTES = 1 << 16


class SlowProxy:
    """Passes everything on; from the service it comes `delay_s` later. Runs on threads."""

    def __init__(self, listen: Path, service: Path) -> None:
        self.delay_s = 0.0
        self._service = str(service)
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(listen))
        self._listener.listen()
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                caller, _ = self._listener.accept()
            except OSError:
                return
            service = socket.socket(socket.AF_UNIX)
            try:
                service.connect(self._service)
            except OSError:
                caller.close()
                service.close()
                continue
            self._pass(caller, service, slow=False)
            self._pass(service, caller, slow=True)

    def _pass(self, source: socket.socket, target: socket.socket, *, slow: bool) -> None:
        def run() -> None:
            with contextlib.suppress(OSError):
                while data := source.recv(CHUNK_BYTES):
                    if slow and self.delay_s:
                        time.sleep(self.delay_s)
                    target.sendall(data)
            for end in (source, target):
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
            # The other direction's thread closes its own.
            source.close()

        threading.Thread(target=run, daemon=True).start()
