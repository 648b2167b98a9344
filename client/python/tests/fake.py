"""A server that answers as a test wants, for what the real one would never do."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from concurrent import futures
from typing import Any

import grpc

# Takes the call's path, its bytes and grpcio's context.
Answer = Callable[[str, bytes, Any], bytes]


@contextlib.contextmanager
def serve(answer: Answer, credentials: Any = None, address: str = "127.0.0.1:0") -> Iterator[str]:
    """Yields its address."""

    class Handler(grpc.GenericRpcHandler):
        def service(self, details: Any) -> Any:
            return grpc.unary_unary_rpc_method_handler(
                lambda request, context: answer(details.method, request, context)
            )

    server = grpc.server(futures.ThreadPoolExecutor(8))
    server.add_generic_rpc_handlers((Handler(),))
    if credentials is None:
        port = server.add_insecure_port(address)
    else:
        port = server.add_secure_port(address, credentials)
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(0).wait()


@contextlib.contextmanager
def serve_after(gate: threading.Event, seconds_max: float = 30) -> Iterator[str]:
    """One that says that it is there, and nothing else before the gate opens."""

    def late(path: str, request: bytes, context: Any) -> bytes:
        if not path.endswith("GetStatus"):
            gate.wait(seconds_max)
        return b""

    with serve(late) as address:
        yield address
        gate.set()
