"""A forked child asks over a connection of its own, and leaves its parent's alone."""

from __future__ import annotations

import asyncio
import json
import os
import pathlib
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from conftest import Server, make_namespace, prompt

import kvatlas
from kvatlas import AsyncClient, Breaker, Client, Miss

NAMESPACE = make_namespace()
FIELDS = {name: getattr(NAMESPACE, name) for name in NAMESPACE.__dataclass_fields__}
SOURCE = pathlib.Path(kvatlas.__file__).parents[1]
CHILD_S_MAX = 60

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork"),
    # Python warns of forks beside threads; engines do it all the same.
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
]


def in_child(work: Callable[[], Any]) -> Any:
    """What `work` returns in a forked child, or the signal that ended it before. A child that hangs
    is killed, and fails the test."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            said = json.dumps(work())
        except BaseException as error:
            said = json.dumps(f"raised {error!r}")
        os.write(writing, said.encode())
        os._exit(0)
    os.close(writing)
    ready, _, _ = select.select([reading], [], [], CHILD_S_MAX)
    if not ready:
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    said = os.read(reading, 1 << 16)
    os.close(reading)
    assert ready, "the child hangs"
    return json.loads(said) if said else signal.Signals(os.WTERMSIG(status)).name


def reason(client: Client) -> str:
    answer = client.find_donor(prompt(1), NAMESPACE)
    return answer.reason if isinstance(answer, Miss) else "found"


@pytest.mark.parametrize("transport", ["tcp", "unix"])
def test_a_child_asks_with_the_client_it_inherited(server: Server, transport: str) -> None:
    address = server.address if transport == "tcp" else f"unix:{server.unix}"
    with Client(address, lookup_timeout_s=20) as client:
        for _ in range(3):
            assert reason(client) == "provider_miss"
            assert in_child(lambda: [reason(client), reason(client)]) == ["provider_miss"] * 2
        assert reason(client) == "provider_miss"


def test_a_grandchild_asks_too(server: Server) -> None:
    with Client(server.address, lookup_timeout_s=20) as client:
        assert reason(client) == "provider_miss"
        assert in_child(lambda: [reason(client), in_child(lambda: reason(client))]) == [
            "provider_miss",
            "provider_miss",
        ]


def test_a_fork_amid_other_threads_calls_hangs_nobody(server: Server) -> None:
    with Client(server.address, lookup_timeout_s=20) as client:
        stop, seen = threading.Event(), set()

        def ask() -> None:
            while not stop.is_set():
                seen.add(reason(client))

        threads = [threading.Thread(target=ask) for _ in range(3)]
        for thread in threads:
            thread.start()
        try:
            children = [in_child(lambda: reason(client)) for _ in range(10)]
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        assert children == ["provider_miss"] * 10
        assert seen == {"provider_miss"}


@pytest.mark.parametrize("support", ["", "0", "1"], ids=["default", "off", "on"])
@pytest.mark.parametrize("kind", ["call", "upload", "asyncio"])
def test_a_fork_ends_a_call_that_takes_long_and_the_child_lives(
    serve: Callable[..., Server], support: str, kind: str
) -> None:
    """The server is stopped, as when it hangs; grpcio's own support of forks is off, on, or as it
    comes. A call that went on would make its fork hang, or its child abort or miss."""
    running = serve()
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    if support:
        environment["GRPC_ENABLE_FORK_SUPPORT"] = support
    arguments = [running.address, str(running.process.pid), kind, repr(FIELDS)]
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", AMID, *arguments],
        capture_output=True,
        text=True,
        timeout=CHILD_S_MAX,
        env=environment,
        check=False,
    )
    child = "provider_error" if support == "0" else "provider_miss"
    assert done.stdout.split() == [child, "aborted", "0", "provider_miss"], done
    assert done.returncode == 0


AMID = """
import asyncio, os, signal, sys, threading, time
import numpy as np
import kvatlas
address, server, kind, fields = sys.argv[1:]
namespace = kvatlas.Namespace.from_dict(eval(fields))
client = kvatlas.Client(address, control_timeout_s=50, lookup_timeout_s=20)
assert client.connect(20)
ask = lambda: client.find_donor(np.arange(600), namespace).reason
codes = []

def call():
    try:
        if kind == "call":
            client.status()
        elif kind == "upload":
            client.put_prior(bytes(100_000), "p", timeout_s=50)
        else:
            asyncio.run(kvatlas.AsyncClient(address, control_timeout_s=50).status())
    except kvatlas.KvatlasError as error:
        codes.append(error.code)

os.kill(int(server), signal.SIGSTOP)
busy = threading.Thread(target=call)
busy.start()
while not kvatlas.forks._gate.calls:
    time.sleep(0.001)
child = os.fork()
os.kill(int(server), signal.SIGCONT)
if child == 0:
    os.write(1, f"{ask()}\\n".encode())
    os._exit(0)
busy.join()
print(*codes, os.waitpid(child, 0)[1], ask())
"""


def test_a_child_begins_with_a_closed_circuit(server: Server) -> None:
    breaker = Breaker(1, open_s=600)
    with Client(server.address, lookup_timeout_s=20, breaker=breaker) as client:
        breaker.failed(time.monotonic())
        assert reason(client) == "provider_disabled"
        assert in_child(lambda: reason(client)) == "provider_miss"


def test_a_lock_that_was_held_at_the_fork_is_not_waited_for(server: Server) -> None:
    with Client(server.address, lookup_timeout_s=20) as client, kvatlas.channel._lock:
        assert in_child(lambda: reason(client)) == "provider_miss"


def test_asyncio_works_in_a_child(server: Server) -> None:
    client = AsyncClient(server.address, lookup_timeout_s=20)

    async def ask() -> str:
        answers = await asyncio.gather(*(client.find_donor(prompt(1), NAMESPACE) for _ in range(5)))
        return " ".join({answer.reason for answer in answers})

    assert asyncio.run(ask()) == "provider_miss"
    assert in_child(lambda: asyncio.run(ask())) == "provider_miss"
    assert asyncio.run(ask()) == "provider_miss"


def test_a_child_that_ends_as_programs_do_takes_nothing_from_its_parent(server: Server) -> None:
    """It closes clients, collects garbage and runs exit handlers."""
    script = """
import os, sys
import numpy as np
import kvatlas
namespace = kvatlas.Namespace.from_dict(eval(sys.argv[2]))
client = kvatlas.Client(sys.argv[1], lookup_timeout_s=20)
ask = lambda: client.find_donor(np.arange(600), namespace).reason
print(ask())
for ending in ("exit", "close"):
    child = os.fork()
    if child == 0:
        ask()
        if ending == "close":
            client.close()
        sys.exit(0)
    assert os.waitpid(child, 0)[1] == 0
    print(ask())
client.close()
"""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script, server.address, repr(FIELDS)],
        capture_output=True,
        text=True,
        timeout=CHILD_S_MAX,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        check=False,
    )
    assert done.stdout.split() == ["provider_miss"] * 3, done
    assert done.returncode == 0
