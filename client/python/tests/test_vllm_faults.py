"""Whatever goes wrong, a request says what it would have said without the connector."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_engine import FakeEngine, model_outputs
from rig import Rig, prompt, request
from slow_proxy import SlowProxy

from kvatlas import Client, KvatlasError, Owner
from kvatlas.vllm.control import RENEW_S


@pytest.fixture
def server(tmp_path: Path, serve: Callable[..., Any]) -> Any:
    return serve("--mode", "materialize")


@pytest.fixture
def rig(tmp_path: Path, server: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    # On a busy machine a lease is not given up for lack of time.
    monkeypatch.setattr("kvatlas.vllm.worker.VALIDATE_S", 10.0)
    made = Rig(tmp_path, server.address)
    yield made
    made.close()


def warmed(rig: Rig, tokens: list[int], **engine: Any) -> FakeEngine:
    """An engine that has captured a prompt and forgotten it."""
    made = rig.engine(**engine)
    made.run(request("cold", tokens))
    rig.until_registered(1, made)
    made.reset_prefix_cache()
    return made


def before_load(engine: FakeEngine, happens: Callable[[], object]) -> None:
    """Once, after tokens were advertised and before the worker hears of the load."""
    build = engine.scheduler.build_connector_meta
    pending = [happens]

    def interrupted(output: Any) -> Any:
        plan = build(output)
        if plan.loads and pending:
            pending.pop()()
        return plan

    engine.scheduler.build_connector_meta = interrupted


def files(rig: Rig) -> list[Path]:
    return sorted(rig.store.glob("*/*.safetensors"))


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "deleted": Path.unlink,
    "truncated": lambda path: path.write_bytes(path.read_bytes()[:-1]),
    "emptied": lambda path: path.write_bytes(b""),
    "flipped": flip,
    "a folder": lambda path: (path.unlink(), path.mkdir()),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_donor_is_computed_and_captured_anew(rig: Rig, damage: str) -> None:
    tokens = prompt(1)
    engine = warmed(rig, tokens)
    for path in files(rig):
        DAMAGES[damage](path)
    hurt = request("hurt", tokens)
    assert engine.run(hurt) == [model_outputs(tokens, 4)]
    assert hurt.computed == len(tokens) + 3
    report = rig.reuse("hurt")
    assert (report["provenance"], report["reason"]) == ("fallback_recompute", "load_failed")
    assert report["invalid_blocks"] == 24
    rig.until_no_lease()
    if damage == "a folder":
        # Perhaps readable another time, so it stays.
        return
    rig.until_registered(2, engine)
    engine.reset_prefix_cache()
    assert engine.run(request("healed", tokens)) == [model_outputs(tokens, 4)]
    assert rig.reuse("healed")["provenance"] == "exact_external_hit"


def test_another_donors_file_in_its_place_is_not_loaded(rig: Rig) -> None:
    tokens, other = prompt(1), prompt(2)
    engine = rig.engine()
    engine.run(request("one", tokens))
    engine.run(request("two", other))
    rig.until_registered(2, engine)
    engine.reset_prefix_cache()
    first, second = files(rig)
    swap = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(swap)
    assert engine.run(request("again", tokens)) == [model_outputs(tokens, 4)]
    assert rig.reuse("again")["reason"] == "load_failed"


def test_a_lease_that_runs_out_before_the_load(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvatlas.vllm.nominate.LEASE_TTL_MS", 1500)
    monkeypatch.setattr("kvatlas.vllm.nominate.LEASE_LEFT_MIN_MS", 0)
    tokens = prompt(1)
    engine = warmed(rig, tokens)
    before_load(engine, lambda: threading.Event().wait(1.6))
    assert engine.run(request("late", tokens)) == [model_outputs(tokens, 4)]
    assert rig.reuse("late")["reason"] == "donor_stale"
    rig.until_no_lease()


def test_a_request_that_waited_longer_than_its_lease_lasts_is_asked_about_again(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvatlas.vllm.nominate.LEASE_TTL_MS", 1000)
    monkeypatch.setattr("kvatlas.vllm.nominate.LEASE_LEFT_MIN_MS", 0)
    tokens = prompt(1)
    engine = warmed(rig, tokens)
    waits = request("waits", tokens)
    engine.add(waits)
    rig.until(lambda: rig.client.status().leases_held == 1)
    monkeypatch.setattr("kvatlas.vllm.nominate.LEASE_TTL_MS", 60_000)
    # As vLLM does not come to it while others run.
    rig.until(lambda: rig.client.status().leases_held == 0)
    rig.until(lambda: not engine.requests, engine)
    assert waits.output == model_outputs(tokens, 4)
    assert rig.reuse("waits")["provenance"] == "exact_external_hit"
    rig.until_no_lease()


def test_a_donor_that_is_removed_before_the_load(rig: Rig) -> None:
    tokens = prompt(1)
    engine = warmed(rig, tokens)
    owner = Owner("engine-0", 0)
    before_load(engine, lambda: rig.client.remove_donors(owner=owner))
    assert engine.run(request("late", tokens)) == [model_outputs(tokens, 4)]
    assert rig.reuse("late")["reason"] == "donor_stale"
    rig.until_no_lease()


def test_a_nomination_that_waits_for_blocks_is_validated_again(rig: Rig) -> None:
    tokens = prompt(1)
    engine = warmed(rig, tokens, blocks=40)
    taken = engine.pool.take(30)
    assert taken is not None
    late = request("late", tokens)
    engine.add(late)
    rig.until(lambda: rig.client.status().leases_held == 1, engine)
    rig.client.remove_donors(owner=Owner("engine-0", 0))
    rig.until(lambda: len(rig.audit("declined")) == 2, engine)
    engine.pool.give_back(taken)
    rig.until(lambda: not engine.requests, engine)
    assert late.output == model_outputs(tokens, 4)
    assert rig.declined("late") == "donor_stale"
    rig.until_no_lease()


def test_a_lease_is_renewed_while_its_request_waits_for_blocks(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvatlas.vllm.nominate.LEASE_TTL_MS", 1500)
    monkeypatch.setattr("kvatlas.vllm.nominate.LEASE_LEFT_MIN_MS", 1000)
    tokens = prompt(1)
    engine = warmed(rig, tokens, blocks=40)
    taken = engine.pool.take(30)
    assert taken is not None
    late = request("late", tokens)
    engine.add(late)
    begun = time.monotonic()
    rig.until(lambda: time.monotonic() - begun > 2, engine)
    engine.pool.give_back(taken)
    rig.until(lambda: not engine.requests, engine)
    assert rig.reuse("late")["provenance"] == "exact_external_hit"
    rig.until_no_lease()


def test_a_service_that_dies_before_the_load(rig: Rig, server: Any) -> None:
    tokens = prompt(1)
    engine = warmed(rig, tokens)
    before_load(engine, server.stop)
    assert engine.run(request("late", tokens)) == [model_outputs(tokens, 4)]
    assert rig.reuse("late")["reason"] == "donor_stale"


def test_a_service_that_is_not_there(rig: Rig, server: Any) -> None:
    tokens = prompt(1)
    engine = warmed(rig, tokens)
    server.stop()
    names = [f"alone-{number}" for number in range(12)]
    for name in names:
        assert engine.run(request(name, tokens)) == [model_outputs(tokens, 4)]
        engine.reset_prefix_cache()
    reasons = {rig.declined(name) for name in names}
    assert reasons == {"provider_error", "provider_disabled"}


def test_a_service_that_never_was_there(rig: Rig) -> None:
    engine = rig.engine(extra={"address": "127.0.0.1:1"})
    tokens = prompt(1)
    assert engine.run(request("alone", tokens)) == [model_outputs(tokens, 4)]
    assert rig.declined("alone") == "provider_error"


def test_a_service_that_answers_late(tmp_path: Path, rig: Rig, server: Any) -> None:
    proxy = SlowProxy(tmp_path / "proxy.sock", Path(server.unix))
    extra = {"address": f"unix:{tmp_path / 'proxy.sock'}", "lookup_timeout_ms": 200}
    tokens = prompt(1)
    engine = warmed(rig, tokens, extra=extra)
    proxy.delay_s = 2.0
    assert engine.run(request("late", tokens)) == [model_outputs(tokens, 4)]
    assert rig.declined("late") == "provider_timeout"
    proxy.delay_s = 0.0
    rig.until_no_lease()
    proxy.close()


def test_a_service_that_comes_back_is_asked_and_holds_leases_again(rig: Rig, server: Any) -> None:
    tokens = prompt(1)
    engine = warmed(rig, tokens)
    server.stop()
    for number in range(8):
        engine.run(request(f"dead-{number}", tokens))
        engine.reset_prefix_cache()
    back = server.again()
    begun = time.monotonic()
    try:
        served = 0

        def loads() -> bool:
            nonlocal served
            served += 1
            engine.reset_prefix_cache()
            one = request(f"back-{served}", tokens)
            assert engine.run(one) == [model_outputs(tokens, 4)]
            return one.computed < len(tokens)

        rig.until(loads)
        # Sooner than the owner's announcement would have been renewed anyway.
        assert time.monotonic() - begun < RENEW_S - 1
    finally:
        back.stop()


def test_no_donor_is_registered_before_its_owner_is_announced(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = []
    announce, register = Client.announce_owner, Client.register_donor

    def announcing(self: Client, *who: Any, **how: Any) -> Any:
        if len(told) < 2:
            told.append("lost")
            raise KvatlasError("unavailable", "")
        state = announce(self, *who, **how)
        told.append("announced")
        return state

    def registering(self: Client, donor: Any) -> Any:
        told.append("registered")
        return register(self, donor)

    monkeypatch.setattr(Client, "announce_owner", announcing)
    monkeypatch.setattr(Client, "register_donor", registering)
    tokens = prompt(1)
    engine = warmed(rig, tokens)
    assert told[:4] == ["lost", "lost", "announced", "registered"]
    assert engine.run(request("again", tokens)) == [model_outputs(tokens, 4)]
    assert rig.reuse("again")["provenance"] == "exact_external_hit"


def test_what_is_registered_after_a_restart_can_be_loaded_at_once(rig: Rig, server: Any) -> None:
    tokens = prompt(1)
    engine = warmed(rig, prompt(2))
    server.stop()
    back = server.again()
    try:
        assert rig.client.connect(20)
        assert engine.run(request("cold", tokens)) == [model_outputs(tokens, 4)]
        rig.until_registered(2, engine)
        engine.reset_prefix_cache()
        again = request("again", tokens)
        assert engine.run(again) == [model_outputs(tokens, 4)]
        assert again.computed < len(tokens)
    finally:
        back.stop()


def test_a_service_that_lost_its_donors_gets_them_again(rig: Rig, server: Any) -> None:
    tokens = prompt(1)
    engine = warmed(rig, tokens)
    server.stop()
    arguments = ["--data-dir", str(rig.folder / "new"), "--mode", "materialize"]
    fresh = dataclasses.replace(server, arguments=arguments).again()
    try:
        turn = 0

        def registered_again() -> bool:
            nonlocal turn
            turn += 1
            assert engine.run(request(f"r{turn}", tokens)) == [model_outputs(tokens, 4)]
            engine.reset_prefix_cache()
            return len(rig.audit("registered")) == 2

        rig.until(registered_again)
        assert engine.run(request("last", tokens)) == [model_outputs(tokens, 4)]
        assert rig.reuse("last")["provenance"] == "exact_external_hit"
    finally:
        fresh.stop()


def test_restarts_under_load_fail_nothing(rig: Rig, server: Any) -> None:
    prompts = [prompt(seed) for seed in range(4)]
    expected = [model_outputs(tokens, 4) for tokens in prompts]
    engine = rig.engine()
    stop = threading.Event()
    running = [server]

    def restart() -> None:
        while not stop.wait(0.2):
            running[0].stop()
            stop.wait(0.2)
            running[0] = running[0].again()

    thread = threading.Thread(target=restart)
    thread.start()
    try:
        for turn in range(25):
            named = [request(f"{turn}-{number}", one) for number, one in enumerate(prompts)]
            assert engine.run(*named) == expected
            engine.reset_prefix_cache()
    finally:
        stop.set()
        thread.join()
    try:
        rig.until_no_lease()
    finally:
        running[0].stop()


def test_a_store_that_cannot_be_written_to(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = rig.engine()
    store = engine.worker._worker._store

    def full(*_: object) -> list[str]:
        raise OSError(28, "no space left")

    monkeypatch.setattr(store, "write", full)
    tokens = prompt(1)
    assert engine.run(request("cold", tokens)) == [model_outputs(tokens, 4)]
    rig.until(lambda: bool(rig.audit("capture")), engine)
    assert not rig.audit("capture")[0]["kept"]
    assert rig.audit("registered") == []
    assert engine.pool.free == 512


def test_a_read_that_hangs_is_given_up_and_fills_nothing_later(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvatlas.vllm.worker.LOAD_S_MAX", 0.2)
    tokens = prompt(1)
    engine = warmed(rig, tokens)
    store = engine.worker._worker._store
    read, hangs = store.read, threading.Event()

    def hanging(*arguments: Any) -> Any:
        hangs.wait(20)
        return np.full_like(read(*arguments), 7)

    monkeypatch.setattr(store, "read", hanging)
    assert engine.run(request("hung", tokens)) == [model_outputs(tokens, 4)]
    assert rig.reuse("hung")["reason"] == "load_failed"
    monkeypatch.setattr(store, "read", read)
    before = [layer.copy() for layer in engine.layers.values()]
    hangs.set()
    engine.worker._worker._load_lane.close()
    after = engine.layers.values()
    assert all(np.array_equal(one, two) for one, two in zip(before, after, strict=True))


def test_more_saves_than_can_wait_are_left_out(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvatlas.vllm.worker.SAVES_QUEUE_MAX", 2)
    engine = rig.engine()
    store = engine.worker._worker._store
    write, goes_on = store.write, threading.Event()

    def slow(*arguments: Any) -> list[str]:
        goes_on.wait(20)
        return write(*arguments)

    monkeypatch.setattr(store, "write", slow)
    named = [request(f"r{number}", prompt(number, 100)) for number in range(8)]
    for one in named:
        engine.add(one)
    rig.until(lambda: all(one.finished for one in named), engine)
    rig.until(lambda: len(rig.audit("capture")) >= 5, engine)
    goes_on.set()
    rig.until(lambda: not engine.requests, engine)
    rig.until(lambda: len(rig.audit("capture")) == 8, engine)
    told = [line["detail"] for line in rig.audit("capture") if not line["kept"]]
    assert set(told) == {"too many saves wait"}
    # Eight, less the one that is being written, if the thread has come to it, and two that wait.
    assert 5 <= len(told) <= 6
    assert engine.pool.free == 512


@contextlib.contextmanager
def copies_wait(engine: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing is copied meanwhile."""
    store, goes_on = engine.worker._worker._store, threading.Event()
    write = store.write

    def waiting(*arguments: Any) -> list[str]:
        goes_on.wait(20)
        return write(*arguments)

    monkeypatch.setattr(store, "write", waiting)
    yield
    goes_on.set()


def test_copies_hold_so_many_blocks_and_not_more(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = rig.engine(blocks=400)
    # Half of 400 blocks: 28 of 7, of which one is the answer's.
    named = [request(f"r{number}", prompt(number, 100)) for number in range(40)]
    with copies_wait(engine, monkeypatch):
        for one in named:
            engine.add(one)
        rig.until(lambda: all(one.finished for one in named), engine)
        rig.until(lambda: len(rig.audit("capture")) == 12, engine)
        assert engine.pool.free == 400 - 28 * 7
    rig.until(lambda: len(rig.audit("capture")) == 40, engine)
    told = [line["detail"] for line in rig.audit("capture") if not line["kept"]]
    assert told == ["203 blocks wait to be copied, more than 200 of the engine"] * 12
    # What was held is held no more. One alone may have more than half.
    engine.run(request("long", prompt(99, 250 * 16)))
    rig.until(lambda: len(rig.audit("capture")) == 41, engine)
    assert rig.audit("capture")[-1]["kept"]
    assert engine.pool.free == 400


def test_no_copy_is_larger_than_memory_allows(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    # Eleven blocks of two layers of sixteen tokens.
    monkeypatch.setattr("kvatlas.vllm.engine.CAPTURES_BYTES_MAX", 11 * 2 * 16 * 8)
    engine = rig.engine()
    with copies_wait(engine, monkeypatch):
        engine.run(request("huge", prompt(1, 11 * 16)))
        fits, beside = request("fits", prompt(2, 10 * 16)), request("beside", prompt(3, 80))
        for one in (fits, beside):
            engine.add(one)
        rig.until(lambda: fits.finished and beside.finished, engine)
        rig.until(lambda: len(rig.audit("capture")) == 2, engine)
    rig.until(lambda: len(rig.audit("capture")) == 3, engine)
    lines = {line["request_id"]: line for line in rig.audit("capture")}
    kept = {name: line["kept"] for name, line in lines.items()}
    assert kept == {"huge": False, "fits": True, "beside": False}
    assert lines["huge"]["detail"] == "12 blocks wait to be copied, more than 11"
    assert lines["beside"]["detail"] == "17 blocks wait to be copied, more than 11"


def test_evicted_donors_are_removed_from_the_service(rig: Rig) -> None:
    size = 25 * 16 * 8 * 2
    engine = rig.engine(extra={"kv_store": f"memory,max={3 * size}"})
    for number in range(5):
        engine.run(request(f"r{number}", prompt(number)))
    rig.until_registered(5, engine)
    rig.until(lambda: rig.client.status().donors == 3, engine)
    engine.reset_prefix_cache()
    for number in range(5):
        tokens = prompt(number)
        assert engine.run(request(f"again-{number}", tokens)) == [model_outputs(tokens, 4)]
        engine.reset_prefix_cache()
