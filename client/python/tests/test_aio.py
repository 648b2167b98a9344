"""The asyncio client: the same answers, without a thread that waits, in any event loop."""

from __future__ import annotations

import asyncio
import pathlib
import threading
import time

import fake
import pytest
from conftest import Server, make_namespace, prompt
from test_client import EXAMPLE_PRIOR

import kvatlas
from kvatlas import AsyncClient, Breaker, Found, KvatlasError, Manifest, Miss, Namespace, Owner

NAMESPACE = make_namespace()


def test_every_call_is_answered(server: Server, namespace: Namespace) -> None:
    async def all_calls() -> None:
        async with AsyncClient(server.address, lookup_timeout_s=10) as client:
            assert await client.connect(10)
            await client.announce_owner("async", 1)
            donor = kvatlas.Donor(
                "d", namespace, Owner("async"), 1, prompt(1), 1024, "host", "s", exact_tokens=1024
            )
            assert (await client.register_donor(donor)).admission == "added"
            found = await client.find_donor(
                prompt(1), namespace, holder="h", readable_store_ids=["s"]
            )
            assert isinstance(found, Found)
            assert found.lease is not None
            lease_id = found.lease.id
            assert (await client.validate(lease_id, "h"))[0] == "valid"
            assert await client.renew(lease_id, "h") == "valid"
            assert await client.release(lease_id, "h") is True
            assert (
                await client.report_reuse("r", "candidate_rejected", reason="load_failed") is False
            )
            assert (await client.find_workers(prompt(1))).workers == ()
            assert await client.finish_requests(["r"]) == 0
            prior = sorted(pathlib.Path(EXAMPLE_PRIOR).rglob("*.safetensors"))[0]
            assert (await client.put_prior(prior, "asynchronous")).total_blocks > 4
            assert isinstance(await client.get_manifest("asynchronous", k=4), Manifest)
            assert (await client.status()).mode == "materialize"
            assert await client.set_mode("materialize", namespace) == "materialize"
            assert await client.remove_donors(["d"], namespace=namespace) == 1
            with pytest.raises(KvatlasError, match="invalid_argument"):
                await client.announce_owner("", 1)
        closed = await client.find_donor(prompt(1), namespace)
        assert isinstance(closed, Miss)
        assert closed.reason == "provider_error"

    asyncio.run(all_calls())


def test_one_client_serves_one_event_loop_after_another(server: Server) -> None:
    client = AsyncClient(server.address, lookup_timeout_s=10)
    for _ in range(2):
        answers = asyncio.run(_many(client, 64))
        assert {answer.reason for answer in answers} == {"provider_miss"}


async def _many(client: AsyncClient, count: int) -> list[Found | Miss]:
    return await asyncio.gather(*(client.find_donor(prompt(1), NAMESPACE) for _ in range(count)))


def test_the_loop_goes_on_while_a_server_is_silent() -> None:
    gate = threading.Event()
    with fake.serve_after(gate) as address:

        async def wait() -> tuple[Found | Miss, int]:
            client = AsyncClient(address, breaker=Breaker(10**9))
            ticks = 0
            lookup = asyncio.ensure_future(client.find_donor(prompt(1), NAMESPACE, timeout_s=0.3))
            while not lookup.done():
                await asyncio.sleep(0.01)
                ticks += 1
            return lookup.result(), ticks

        answer, ticks = asyncio.run(wait())
        assert isinstance(answer, Miss)
        assert answer.reason == "provider_timeout"
        assert ticks > 3


def test_a_cancelled_wait_cancels_the_call() -> None:
    """It does not swallow the cancellation as one more failure."""
    gate, cancelled = threading.Event(), threading.Event()

    def late(path: str, request: bytes, context: object) -> bytes:
        context.add_callback(cancelled.set)
        gate.wait(30)
        return b""

    with fake.serve(late) as address:

        async def cancel() -> None:
            client = AsyncClient(address, lookup_timeout_s=600)
            lookup = asyncio.ensure_future(client.find_donor(prompt(1), NAMESPACE))
            await asyncio.sleep(0.2)
            lookup.cancel()
            with pytest.raises(asyncio.CancelledError):
                await lookup

        began = time.monotonic()
        asyncio.run(cancel())
        assert cancelled.wait(10), "the server still works on it"
        assert time.monotonic() - began < 30
        gate.set()


def test_nobody_there_is_a_miss_and_then_not_asked() -> None:
    async def ask() -> list[str]:
        client = AsyncClient("127.0.0.1:1", lookup_timeout_s=5, breaker=Breaker(2, open_s=600))
        answers = [await client.find_donor(prompt(1), NAMESPACE) for _ in range(3)]
        assert await client.validate(b"x") == ("stale", 0)
        assert not await client.connect(0.01)
        return [answer.reason for answer in answers]

    assert asyncio.run(ask()) == ["provider_error", "provider_error", "provider_disabled"]
