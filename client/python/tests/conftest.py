"""A real server for tests: the binary that KVATLAS_BIN names, else the workspace's debug build."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import subprocess
from collections.abc import Callable, Iterator

import numpy as np
import pytest

import kvatlas

WORKSPACE = pathlib.Path(__file__).resolve().parents[3]
START_S_MAX = 30


@dataclasses.dataclass
class Server:
    """A running `kvatlas serve`."""

    process: subprocess.Popen[str]
    address: str
    unix: str
    arguments: list[str]

    def stop(self) -> None:
        """Kills it: nothing is said to anybody."""
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()

    def again(self) -> Server:
        """A new one at the same addresses, with the same data."""
        return start(self.arguments, self.address, self.unix)


def start(arguments: list[str], listen: str, unix: str) -> Server:
    binary = os.environ.get("KVATLAS_BIN") or str(WORKSPACE / "target/debug/kvatlas")
    environment = {
        name: text for name, text in os.environ.items() if not name.startswith("KVATLAS_")
    }
    command = [binary, "serve", "--listen", listen, "--listen", f"unix:{unix}"]
    command += ["--http-listen", "127.0.0.1:0", *arguments]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=environment,
    )
    assert process.stdout is not None
    ready = json.loads(process.stdout.readline())
    address = next(one for one in ready["grpc"] if not one.startswith("unix:"))
    return Server(process, address, unix, arguments)


@pytest.fixture
def serve(tmp_path: pathlib.Path) -> Iterator[Callable[..., Server]]:
    """Starts servers; those that still run are killed after the test."""
    started: list[Server] = []

    def one(*arguments: str) -> Server:
        folder = tmp_path / f"server-{len(started)}"
        server = start(
            ["--data-dir", str(folder / "data"), *arguments], "127.0.0.1:0", str(folder) + ".sock"
        )
        started.append(server)
        return server

    yield one
    for server in started:
        if server.process.poll() is None:
            server.stop()


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One for all tests that do not mind each other's donors, in materialize mode."""
    folder = tmp_path_factory.mktemp("server")
    running = start(
        ["--data-dir", str(folder / "data"), "--mode", "materialize"],
        "127.0.0.1:0",
        str(folder / "s.sock"),
    )
    yield running
    running.stop()


@pytest.fixture
def client(server: Server) -> Iterator[kvatlas.Client]:
    """To the shared server, with time for a busy machine."""
    with kvatlas.Client(server.address, lookup_timeout_s=10.0) as made:
        yield made


@pytest.fixture
def namespace(request: pytest.FixtureRequest) -> kvatlas.Namespace:
    """A complete one, of this test alone."""
    return make_namespace(model=request.node.nodeid)


def make_namespace(**fields: object) -> kvatlas.Namespace:
    complete: dict[str, object] = {
        "model": "m",
        "model_revision": "1",
        "tokenizer": "t",
        "tokenizer_revision": "1",
        "tokenization": "default",
        "chat_template": "none",
        "dtype": "bfloat16",
        "kv_cache_dtype": "auto",
        "block_size": 16,
        "kv_layout": "NHD",
        "attention_backend": "flash_attn",
        "tensor_parallel_size": 1,
        "pipeline_parallel_size": 1,
        "adapter": "none",
        "rope_scaling": "none",
        "tenant_key": kvatlas.tenant_key(None),
    }
    return kvatlas.Namespace.from_dict({**complete, **fields})


def prompt(seed: int, length: int = 1024) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 30_000, length, dtype=np.int64)
