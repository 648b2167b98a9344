"""The connector in an engine's lifecycle: captures, loads, and every way out."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_engine import FakeEngine, Status, model_outputs
from rig import Rig, prompt, request
from vllm.distributed.kv_transfer.kv_connector.v1 import base as vllm_base

from kvatlas import Client


@pytest.fixture
def rig(
    tmp_path: Path, serve: Callable[..., object], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Rig]:
    # So long that a lease that is not given back outlives the test.
    monkeypatch.setattr("kvatlas.vllm.nominate.LEASE_TTL_MS", 300_000)
    # And on a busy machine a lease is not given up for lack of time.
    monkeypatch.setattr("kvatlas.vllm.worker.VALIDATE_S", 10.0)
    server = serve("--mode", "materialize")
    made = Rig(tmp_path, server.address)  # type: ignore[attr-defined]
    yield made
    made.close()


PREEMPTION_TURNS_MAX = 20


def test_bases_of_two_arguments_are_known(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    def of_two(self: Any, vllm_config: Any, role: Any) -> None:
        self._connector_metadata = None

    monkeypatch.setattr(vllm_base.KVConnectorBase_V1, "__init__", of_two)
    engine = rig.engine()
    tokens = prompt(1)
    assert engine.run(request("r", tokens)) == [model_outputs(tokens, 4)]
    rig.until_registered(1, engine)


@pytest.mark.parametrize("store", ["folder", "memory"])
@pytest.mark.parametrize("batch_tokens", [4096, 48])
def test_a_repeated_prompt_is_loaded(rig: Rig, store: str, batch_tokens: int) -> None:
    extra = {} if store == "folder" else {"kv_store": "memory,max=64MiB"}
    engine = rig.engine(extra=extra, batch_tokens=batch_tokens)
    prompts = [prompt(seed, 100 + 97 * seed) for seed in range(6)]
    expected = [model_outputs(tokens, 4) for tokens in prompts]
    for number, tokens in enumerate(prompts):
        assert engine.run(request(f"cold-{number}", tokens)) == [expected[number]]
    rig.until_registered(len(prompts), engine)
    engine.reset_prefix_cache()
    for number, tokens in enumerate(prompts):
        warm = request(f"warm-{number}", tokens)
        assert engine.run(warm) == [expected[number]]
        full = (len(tokens) - 1) // 16 * 16
        assert warm.computed == len(tokens) - full + 3
        assert rig.reuse(f"warm-{number}")["provenance"] == "exact_external_hit"
    rig.until_no_lease()
    assert len(rig.audit("capture")) == 6, "what was loaded is not captured again"


def test_only_what_the_local_cache_lacks_is_loaded(rig: Rig) -> None:
    engine = rig.engine()
    tokens = prompt(1, 400)
    engine.run(request("long", tokens))
    rig.until_registered(1, engine)
    engine.reset_prefix_cache()
    engine.run(request("head", tokens[:160] + prompt(2, 10)))
    again = request("again", tokens)
    assert engine.run(again) == [model_outputs(tokens, 4)]
    assert rig.reuse("again")["provenance"] == "exact_external_hit"
    assert rig.reuse("again")["tokens_loaded"] == 384 - 160
    engine.run(request("local", tokens))
    assert rig.reuse("local")["provenance"] == "exact_local_prefix_hit"
    rig.until_no_lease()


def test_a_longer_prompt_loads_the_part_that_is_shared(rig: Rig) -> None:
    engine = rig.engine()
    tokens = prompt(1, 400)
    engine.run(request("first", tokens))
    rig.until_registered(1, engine)
    engine.reset_prefix_cache()
    longer = tokens + prompt(2, 200)
    assert engine.run(request("longer", longer)) == [model_outputs(longer, 4)]
    assert rig.reuse("longer")["tokens_loaded"] == 400
    rig.until(lambda: len(rig.audit("registered")) == 2, engine)
    engine.reset_prefix_cache()
    assert engine.run(request("again", longer)) == [model_outputs(longer, 4)]
    assert rig.reuse("again")["tokens_loaded"] == 592


def test_another_engine_reads_the_same_folder(rig: Rig) -> None:
    first = rig.engine()
    second = rig.engine(changes={"kv_transfer_config__engine_id": "engine-1"})
    tokens = prompt(1)
    first.run(request("first", tokens))
    rig.until_registered(1, first)
    assert second.run(request("second", tokens)) == [model_outputs(tokens, 4)]
    assert rig.reuse("second")["provenance"] == "exact_external_hit"


def test_every_worker_keeps_and_loads_its_share(rig: Rig) -> None:
    engine = rig.engine(changes={"parallel_config__tensor_parallel_size": 2})
    prompts = [prompt(seed) for seed in range(3)]
    for number, tokens in enumerate(prompts):
        engine.run(request(f"cold-{number}", tokens))
    rig.until_registered(3, engine)
    assert len(list(rig.store.glob("*/0-of-2.safetensors"))) == 3
    assert len(list(rig.store.glob("*/1-of-2.safetensors"))) == 3
    engine.reset_prefix_cache()
    assert engine.run(request("warm", prompts[0])) == [model_outputs(prompts[0], 4)]
    assert rig.reuse("warm")["provenance"] == "exact_external_hit"
    for path in rig.store.glob("*/1-of-2.safetensors"):
        path.unlink()
    engine.reset_prefix_cache()
    assert engine.run(request("half", prompts[1])) == [model_outputs(prompts[1], 4)]
    assert rig.reuse("half")["reason"] == "load_failed"
    rig.until_no_lease()


def test_a_share_that_is_not_kept_makes_no_donor(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = rig.engine(changes={"parallel_config__tensor_parallel_size": 2})
    store = engine.workers[1].connector._worker._store

    def full(*_: object) -> list[str]:
        raise OSError(28, "no space left")

    monkeypatch.setattr(store, "write", full)
    engine.run(request("cold", prompt(1)))
    rig.until(lambda: bool(rig.audit("capture")), engine)
    rig.until(lambda: not list(rig.store.glob("*/*.safetensors")), engine)
    assert rig.audit("registered") == []


def test_salts_and_adapters_are_apart(rig: Rig, tmp_path: Path) -> None:
    engine = rig.engine()
    tokens = prompt(1)
    engine.run(request("a", tokens, cache_salt="tenant-a"))
    rig.until_registered(1, engine)
    for number, salt in enumerate(("tenant-b", None)):
        other = request(f"other-{number}", tokens, cache_salt=salt)
        engine.run(other)
        assert other.computed >= len(tokens)
    assert rig.audit("reuse") == []
    engine.reset_prefix_cache()
    engine.run(request("same", tokens, cache_salt="tenant-a"))
    assert rig.reuse("same")["provenance"] == "exact_external_hit"


def test_discovery_only_looks_and_touches_nothing(
    tmp_path: Path, serve: Callable[..., object]
) -> None:
    rig = Rig(tmp_path, serve().address)  # type: ignore[attr-defined]
    engine = rig.engine("discovery_only")
    tokens = prompt(1, 600)
    engine.run(request("donor", tokens))
    rig.until_registered(1, engine)
    engine.reset_prefix_cache()
    same, wrapped = request("same", tokens), request("wrapped", prompt(2, 40) + tokens)
    engine.run(same)
    engine.run(wrapped)
    assert same.output == model_outputs(tokens, 4)
    assert wrapped.output == model_outputs(prompt(2, 40) + tokens, 4)
    assert (same.computed, wrapped.computed) == (603, 643)
    rig.until(lambda: len(rig.audit("lookup")) == 3)
    hits = {line["request_id"]: line for line in rig.audit("lookup")}
    assert hits["same"]["outcome"] == "prefix"
    assert hits["wrapped"]["outcome"] == "spans"
    assert hits["wrapped"]["verified_tokens"] >= 0.9 * len(tokens)
    assert not hits["same"]["leased"]
    assert not rig.store.exists()
    assert rig.audit("reuse") == []
    engine.run(request("local", tokens))
    rig.until(lambda: bool(rig.audit("local")))
    (line,) = rig.audit("local")
    assert (line["request_id"], line["local_tokens"]) == ("local", 592)
    assert rig.client.status().leases_held == 0
    rig.close()


def test_discovery_only_holds_no_lease_where_others_may(rig: Rig) -> None:
    owner = rig.engine()
    engine = rig.engine("discovery_only", changes={"kv_transfer_config__engine_id": "engine-1"})
    tokens = prompt(1, 600)
    owner.run(request("donor", tokens))
    rig.until_registered(1, owner)
    looks = request("looks", tokens)
    engine.run(looks)
    assert looks.computed == 603
    rig.until(lambda: len(rig.audit("lookup")) == 2)
    assert rig.audit("lookup")[1]["lease_refusal"] == "holder_missing"
    assert rig.client.status().leases_held == 0


def test_discovery_only_finds_its_own_donors_where_others_may_load(rig: Rig) -> None:
    engine = rig.engine("discovery_only")
    tokens = prompt(1, 600)
    engine.run(request("donor", tokens))
    rig.until_registered(1, engine)
    engine.run(request("wrapped", prompt(2, 40) + tokens))
    rig.until(lambda: len(rig.audit("lookup")) == 2)
    found = rig.audit("lookup")[1]
    assert (found["outcome"], found["lease_refusal"]) == ("spans", "holder_missing")
    assert found["verified_tokens"] >= 0.9 * len(tokens)
    assert rig.client.status().leases_held == 0


def test_what_is_not_served_is_declined_by_reason(rig: Rig) -> None:
    engine = rig.engine()
    tokens = prompt(1)
    cases = {
        "image": ({"mm_features": ["x"]}, "unsupported_request"),
        "adapter": ({"lora_request": object()}, "unsupported_request"),
        "blank": ({"cache_salt": "  "}, "namespace_mismatch"),
        "skip": ({"skip_reading_prefix_cache": True}, "recompute_policy"),
    }
    for name, (fields, _) in cases.items():
        engine.run(request(name, tokens, **fields))
    engine.run(request("short", tokens[:30]))
    rig.until(lambda: len(rig.audit("declined")) == len(cases) + 1)
    reasons = {line["request_id"]: line["reason"] for line in rig.audit("declined")}
    assert reasons == {
        **{name: reason for name, (_, reason) in cases.items()},
        "short": "unsupported_request",
    }
    assert rig.audit("capture") == []


def test_roles_are_kept_to(rig: Rig) -> None:
    tokens = prompt(1)
    producer = rig.engine(changes={"kv_transfer_config__is_kv_consumer": False})
    producer.run(request("one", tokens))
    rig.until_registered(1, producer)
    producer.reset_prefix_cache()
    again = request("again", tokens)
    producer.run(again)
    assert again.computed == len(tokens) + 3, "a producer loads nothing"
    consumer = rig.engine(
        changes={
            "kv_transfer_config__is_kv_producer": False,
            "kv_transfer_config__engine_id": "engine-1",
        }
    )
    other = prompt(2)
    consumer.run(request("loads", tokens), request("other", other))
    assert rig.reuse("loads")["provenance"] == "exact_external_hit"
    assert {line["request_id"] for line in rig.audit("capture")} == {"one"}
    rig.until_no_lease()


def test_hybrid_layouts_are_declined(rig: Rig) -> None:
    engine = rig.engine(groups=2)
    tokens = prompt(1)
    assert engine.run(request("r", tokens)) == [model_outputs(tokens, 4)]
    rig.until(lambda: len(rig.audit("declined")) == 1)
    declined = rig.audit("declined")[0]
    assert declined["reason"] == "unsupported_request"
    assert "hybrid" in declined["detail"]


def test_an_unknown_field_of_the_namespace_is_a_miss(rig: Rig) -> None:
    engine = rig.engine(changes={"load_config__load_format": "dummy"})
    engine.run(request("r", prompt(1)))
    rig.until(lambda: len(rig.audit("declined")) == 1)
    assert rig.audit("declined")[0]["reason"] == "namespace_mismatch"
    assert "model_revision" in rig.audit("declined")[0]["detail"]


@pytest.mark.parametrize(
    ("mode", "changes", "told"),
    [
        ("exact_prefix", {"kv_transfer_config__kv_load_failure_policy": "fail"}, "recompute"),
        ("request_only", {}, "prefix caching"),
    ],
)
def test_a_configuration_that_could_do_harm_is_refused(
    rig: Rig, mode: str, changes: dict[str, object], told: str
) -> None:
    with pytest.raises(ValueError, match=told):
        rig.engine(mode, changes=changes)


def test_aborts_at_any_step_leave_nothing_behind(rig: Rig) -> None:
    engine = rig.engine(batch_tokens=64)
    tokens = prompt(1, 300)
    engine.run(request("cold", tokens))
    rig.until_registered(1, engine)
    engine.reset_prefix_cache()
    free = engine.pool.free
    for steps in range(12):
        engine.add(request(f"aborted-{steps}", tokens))
        for _ in range(steps):
            engine.step()
        engine.abort(f"aborted-{steps}")
        rig.until(lambda: not engine.requests, engine)
        engine.reset_prefix_cache()
        assert engine.pool.free == free
    rig.until_no_lease()
    assert engine.run(request("after", tokens)) == [model_outputs(tokens, 4)]


def test_an_abort_during_a_load_gives_the_lease_back_at_once(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = rig.engine()
    tokens = prompt(1)
    engine.run(request("cold", tokens))
    rig.until_registered(1, engine)
    engine.reset_prefix_cache()
    store = engine.worker._worker._store
    read, goes_on = store.read, threading.Event()

    def slow(*arguments: object) -> object:
        goes_on.wait(20)
        return read(*arguments)

    monkeypatch.setattr(store, "read", slow)
    loading = request("loading", tokens)
    engine.add(loading)
    rig.until(lambda: loading.status is Status.WAITING_FOR_REMOTE_KVS, engine)
    engine.abort("loading")
    rig.until_no_lease()
    assert engine.requests, "its blocks are still being filled"
    goes_on.set()
    rig.until(lambda: not engine.requests, engine)
    assert engine.pool.free == 512
    assert rig.reuse("loading")["provenance"] == "candidate_rejected"


def test_a_request_that_ends_while_it_waits_for_blocks_gives_its_lease_back(rig: Rig) -> None:
    engine = rig.engine(blocks=40)
    tokens = prompt(1)
    engine.run(request("cold", tokens))
    rig.until_registered(1, engine)
    engine.reset_prefix_cache()
    assert engine.pool.take(30) is not None
    engine.add(request("waits", tokens))
    rig.until(lambda: rig.client.status().leases_held == 1, engine)
    for _ in range(20):
        engine.step()
    engine.abort("waits")
    rig.until_no_lease()
    assert rig.reuse("waits")["reason"] == "allocation_failed"


def answered(rig: Rig, engine: FakeEngine, name: str) -> None:
    """Waits until its look-up has its answer; the engine does not ask for it meanwhile."""
    ticket = engine.scheduler._scheduler._tracked[name].ticket
    rig.until(lambda: ticket.answer is not None)


def test_every_way_out_before_a_load_has_a_reason(rig: Rig) -> None:
    engine = rig.engine()
    tokens = prompt(1)
    engine.run(request("cold", tokens))
    rig.until_registered(1, engine)
    engine.reset_prefix_cache()
    engine.add(request("aborted", tokens))
    answered(rig, engine, "aborted")
    engine.abort("aborted")
    assert rig.reuse("aborted")["reason"] == "allocation_failed"
    rig.until_no_lease()
    engine.add(request("reset", tokens))
    answered(rig, engine, "reset")
    engine.scheduler.reset_cache()
    assert rig.reuse("reset")["reason"] == "donor_stale"
    rig.until_no_lease()
    assert all(line["reason"] for line in rig.audit("declined"))


def test_preemptions_change_nothing(rig: Rig) -> None:
    engine = rig.engine(blocks=64, batch_tokens=128)
    prompts = [prompt(seed, 330) for seed in range(6)]
    for number, tokens in enumerate(prompts):
        engine.run(request(f"cold-{number}", tokens))
    rig.until_registered(6, engine)
    # Whether loads end close enough to each other for a preemption is up to the threads.
    for turn in range(PREEMPTION_TURNS_MAX):
        engine.reset_prefix_cache()
        warm = [
            request(f"warm-{turn}-{number}", tokens, max_tokens=40)
            for number, tokens in enumerate(prompts)
        ]
        assert engine.run(*warm) == [model_outputs(tokens, 40) for tokens in prompts]
        rig.until_no_lease()
        if engine.preemptions:
            break
    assert engine.preemptions > 0


def test_a_preempted_request_loads_again(rig: Rig) -> None:
    engine = rig.engine()
    tokens = prompt(1)
    engine.run(request("cold", tokens))
    rig.until_registered(1, engine)
    engine.reset_prefix_cache()
    warm = request("warm", tokens, max_tokens=30)
    engine.add(warm)
    rig.until(lambda: warm.num_output_tokens > 3, engine)
    engine.preempt(warm)
    engine.reset_prefix_cache()
    rig.until(lambda: not engine.requests, engine)
    assert warm.output == model_outputs(tokens, 30)
    assert rig.reuse("warm", count=2)["provenance"] == "exact_external_hit"
    rig.until_no_lease()


def test_many_at_once_leave_no_lease(rig: Rig) -> None:
    engine = rig.engine(blocks=700, batch_tokens=256)
    prompts = [prompt(seed % 8, 200 + 10 * (seed % 8)) for seed in range(32)]
    cold = [request(f"cold-{number}", tokens) for number, tokens in enumerate(prompts)]
    engine.run(*cold)
    rig.until_registered(8, engine)
    engine.reset_prefix_cache()
    warm = [request(f"warm-{number}", tokens) for number, tokens in enumerate(prompts)]
    expected = [model_outputs(tokens, 4) for tokens in prompts]
    assert engine.run(*warm) == expected
    assert [one.output for one in cold] == expected
    rig.until_no_lease()
    assert engine.pool.free == 700


def test_a_reset_of_the_connector_forgets_what_was_captured(rig: Rig) -> None:
    engine = rig.engine()
    tokens = prompt(1)
    engine.run(request("cold", tokens))
    rig.until_registered(1, engine)
    engine.reset_prefix_cache()
    assert engine.scheduler.reset_cache()
    rig.until(lambda: rig.client.status().donors == 0, engine)
    again = request("again", tokens)
    engine.run(again)
    assert again.computed == len(tokens) + 3
    rig.until_registered(2, engine)
    engine.reset_prefix_cache()
    engine.run(request("third", tokens))
    assert rig.reuse("third")["provenance"] == "exact_external_hit"


def test_a_capture_that_the_service_has_not_heard_of_survives_an_announcement(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says that the service holds none of our donors, of which this one is none yet."""
    engine = rig.engine()
    tokens = prompt(1)
    engine.run(request("cold", tokens))
    rig.until_registered(1, engine)
    engine.reset_prefix_cache()
    announced, goes_on = threading.Event(), threading.Event()
    announce = Client.announce_owner

    def answered_late(self: Client, *who: Any, **how: Any) -> Any:
        state = announce(self, *who, **how)
        announced.set()
        goes_on.wait(20)
        return state

    monkeypatch.setattr(Client, "announce_owner", answered_late)
    assert engine.scheduler.reset_cache()
    assert announced.wait(20)
    engine.run(request("again", tokens))
    rig.until(lambda: len(rig.audit("capture")) == 2, engine)
    goes_on.set()
    rig.until_registered(2, engine)
    engine.reset_prefix_cache()
    engine.run(request("third", tokens))
    assert rig.reuse("third")["provenance"] == "exact_external_hit"


def test_what_was_computed_before_a_reset_is_not_captured_after_it(rig: Rig) -> None:
    engine = rig.engine()
    running = request("running", prompt(1), max_tokens=20)
    engine.add(running)
    rig.until(lambda: running.num_output_tokens > 3, engine)
    engine.scheduler.reset_cache()
    rig.until(lambda: not engine.requests, engine)
    engine.run(request("after", prompt(2)))
    rig.until_registered(1, engine)
    assert [line["request_id"] for line in rig.audit("capture")] == ["after"]


def test_an_engine_that_ends_takes_its_donors_with_it(rig: Rig) -> None:
    engine = rig.engine()
    engine.run(request("cold", prompt(1)))
    rig.until_registered(1, engine)
    engine.close()
    assert rig.client.status().donors == 0
    assert list(rig.store.glob("*/*.safetensors")) == []


def test_nothing_of_a_prompt_is_written_down(rig: Rig) -> None:
    engine = rig.engine()
    tokens = [424_242 + number for number in range(200)]
    engine.run(request("r", tokens, cache_salt="secret-salt"))
    rig.until_registered(1, engine)
    text = rig.audit_path.read_text()
    assert "secret-salt" not in text
    assert "4242" not in text
