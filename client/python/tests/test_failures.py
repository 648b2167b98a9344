"""Whatever goes wrong, a look-up is a miss with a reason, in time, and comes back by itself."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import fake
import grpc
import numpy as np
import pytest
from conftest import Server, make_namespace, prompt
from hypothesis import given, settings
from hypothesis import strategies as st

import kvatlas
from kvatlas import Breaker, Client, KvatlasError, Miss
from kvatlas.answers import LEASE_STATES
from kvatlas.v1 import donors_pb2

NAMESPACE = make_namespace()
NOBODY = "127.0.0.1:1"
# Never opens, so that what a server does is seen every time.
PATIENT = 10**9


def check_miss(answer: object, reason: str, says: str = "") -> None:
    assert isinstance(answer, Miss), answer
    assert answer.reason == reason, answer
    assert says in answer.detail


def ask_everything(client: Client) -> dict[str, object]:
    """Every look-up and every lease call; none may raise."""
    return {
        "find_donor": client.find_donor(prompt(1), NAMESPACE),
        "get_manifest": client.get_manifest("p", k=4),
        "find_workers": client.find_workers(prompt(1)),
        "validate": client.validate(b"lease", "h"),
        "renew": client.renew(b"lease", "h"),
        "release": client.release(b"lease", "h"),
    }


def check_no_answer(answers: dict[str, object], *reasons: str) -> None:
    for name in ("find_donor", "get_manifest", "find_workers"):
        answer = answers[name]
        assert isinstance(answer, Miss), answer
        assert answer.reason in reasons, answer
    assert answers["validate"] == ("stale", 0)
    assert answers["renew"] == "stale"
    assert answers["release"] is False


def test_a_server_that_answers_late_is_a_timeout_at_the_deadline() -> None:
    gate = threading.Event()
    with fake.serve_after(gate) as address, Client(address) as client:
        assert client.connect(10)
        began = time.monotonic()
        for _ in range(3):
            check_miss(client.find_donor(prompt(1), NAMESPACE), "provider_timeout")
        # Three times 5 ms, on a machine that may be busy; the server would have taken 30 s.
        assert time.monotonic() - began < 3
        with pytest.raises(KvatlasError) as late:
            Client(address, control_timeout_s=0.05).finish_requests(["r"])
        assert late.value.code == "deadline_exceeded"
        assert late.value.retryable


def test_a_server_that_takes_nothing_is_a_timeout_at_the_deadline(
    serve: Callable[..., Server],
) -> None:
    """Their bytes fill the connection; grpcio would wait until it is found dead."""
    server = serve()
    long = prompt(1, 8192)
    with Client(server.address, breaker=Breaker(PATIENT), punctual=True) as client:
        assert client.connect(20)
        os.kill(server.process.pid, signal.SIGSTOP)
        try:
            longest_s = 0.0
            for _ in range(600):
                began = time.monotonic()
                answer = client.find_donor(long, NAMESPACE)
                longest_s = max(longest_s, time.monotonic() - began)
                assert isinstance(answer, Miss)
                assert answer.reason in ("provider_timeout", "provider_error")
            assert longest_s < 1
        finally:
            os.kill(server.process.pid, signal.SIGCONT)


def test_a_deadline_of_ones_own_wins_over_the_clients() -> None:
    gate = threading.Event()
    with fake.serve_after(gate) as address, Client(address, lookup_timeout_s=600) as client:
        check_miss(client.find_donor(prompt(1), NAMESPACE, timeout_s=0.01), "provider_timeout")


def test_a_server_that_is_not_there_is_no_answer_and_then_not_asked() -> None:
    with Client(NOBODY, lookup_timeout_s=5, breaker=Breaker(6, open_s=600)) as client:
        check_no_answer(ask_everything(client), "provider_error")
        check_no_answer(ask_everything(client), "provider_disabled")
        check_miss(client.find_donor(prompt(1), NAMESPACE), "provider_disabled", "circuit open")
        assert not client.connect(0.01)
        with pytest.raises(KvatlasError) as gone:
            client.status()
        assert gone.value.code == "unavailable"


def test_lookups_resume_after_a_restart(serve: Callable[..., Server]) -> None:
    """They go on all the while from four threads; none raises."""
    server = serve()
    # More than the usual 5 ms, so that a busy machine is not taken for a dead server.
    with Client(server.address, lookup_timeout_s=0.2) as client:
        assert client.connect(10)
        stop, outcomes, errors = threading.Event(), [], []

        def ask() -> None:
            try:
                while not stop.is_set():
                    answer = client.find_donor(prompt(1), NAMESPACE)
                    outcomes.append((time.monotonic(), answer.reason))
                    stop.wait(0.005)
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=ask) for _ in range(4)]
        for thread in threads:
            thread.start()
        _wait_for(lambda: any(reason == "provider_miss" for _, reason in outcomes))
        server.stop()
        killed = time.monotonic()
        _wait_for(lambda: any(reason == "provider_disabled" for _, reason in outcomes))
        again = server.again()
        ready = time.monotonic()
        try:
            _wait_for(lambda: any(at > ready and r == "provider_miss" for at, r in outcomes))
        finally:
            stop.set()
            for thread in threads:
                thread.join()
            again.stop()
    assert errors == []
    during = {reason for at, reason in outcomes if killed + 0.5 < at < ready}
    assert during <= {"provider_error", "provider_timeout", "provider_disabled"}
    resumed = min(at for at, reason in outcomes if at > ready and reason == "provider_miss")
    assert resumed - ready < 2.0


def _wait_for(happened: Callable[[], bool], seconds_max: float = 30) -> None:
    deadline = time.monotonic() + seconds_max
    while not happened():
        assert time.monotonic() < deadline, "it never happened"
        threading.Event().wait(0.01)


@settings(max_examples=60, deadline=None)
@given(body=st.binary(max_size=200))
def test_garbage_is_never_believed_and_never_raises(garbling: Any, body: bytes) -> None:
    client, say = garbling
    say(body)
    answers = ask_everything(client)
    assert isinstance(answers["find_donor"], Miss)
    assert answers["validate"][0] in LEASE_STATES.values()


def test_a_lie_is_told_from_silence(garbling: Any) -> None:
    client, say = garbling
    say(donors_pb2.FindDonorResponse(outcome=1, lease_refusal=1).SerializeToString())
    answer = client.find_donor(prompt(1), NAMESPACE)
    check_miss(
        answer, "provider_error", "the server's answer is not valid: a hit without its match"
    )


@pytest.fixture(scope="module")
def garbling() -> Any:
    said = [b""]
    with (
        fake.serve(lambda path, request, context: said[0]) as address,
        Client(address, lookup_timeout_s=10, breaker=Breaker(PATIENT)) as client,
    ):
        yield client, lambda body: said.__setitem__(0, body)


_CODES = [code for code in grpc.StatusCode if code is not grpc.StatusCode.OK]


@pytest.mark.parametrize("code", _CODES, ids=[code.name.lower() for code in _CODES])
def test_every_error_status_is_a_reason(code: grpc.StatusCode) -> None:
    def refuse(path: str, request: bytes, context: Any) -> bytes:
        context.abort(code, "why")
        raise AssertionError

    with fake.serve(refuse) as address, Client(address, lookup_timeout_s=10) as client:
        reason = {
            grpc.StatusCode.DEADLINE_EXCEEDED: "provider_timeout",
            grpc.StatusCode.INVALID_ARGUMENT: "unsupported_request",
            grpc.StatusCode.NOT_FOUND: "provider_miss",
        }.get(code, "provider_error")
        check_no_answer(ask_everything(client), reason)
        with pytest.raises(KvatlasError, match=f"{code.name.lower()}: why"):
            client.status()


def test_an_error_status_is_an_answer_to_the_breaker() -> None:
    def refuse(path: str, request: bytes, context: Any) -> bytes:
        context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "full")
        raise AssertionError

    with (
        fake.serve(refuse) as address,
        Client(address, lookup_timeout_s=10, breaker=Breaker(1, open_s=600)) as client,
    ):
        for _ in range(3):
            check_miss(client.find_donor(prompt(1), NAMESPACE), "provider_error", "full")


class _Failing:
    """A transport that fails as it is told, wherever a call touches it."""

    def __init__(self, error: Exception, where: str) -> None:
        self.error, self.where = error, where

    def unary(self, path: str) -> Any:
        if self.where == "lookup":
            raise self.error

        def call(request: bytes, **options: object) -> Any:
            if self.where == "call":
                raise self.error
            return self.error

        call.future = call  # type: ignore[attr-defined]
        return call


class _Unavailable(grpc.RpcError, grpc.Call):
    """As grpcio raises it; of the rest of a call nothing is asked."""

    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.UNAVAILABLE

    def details(self) -> str:
        return "nobody there"

    def _none(self, *_: object) -> None: ...

    add_callback = cancel = initial_metadata = is_active = time_remaining = _none
    trailing_metadata = _none


def test_one_answer_closes_the_circuit_and_only_a_probe_waits_for_a_connection() -> None:
    there, waits = [False], []

    class Moody:
        def unary(self, path: str) -> Any:
            def call(request: bytes, wait_for_ready: bool, **options: object) -> bytes:
                waits.append(wait_for_ready)
                if not there[0]:
                    raise _Unavailable
                return donors_pb2.FindDonorResponse(outcome=3, reason=5).SerializeToString()

            return call

    client = Client(NOBODY, breaker=Breaker(2, open_s=0.5), punctual=False)
    object.__setattr__(client._session.way(), "connection", Moody())
    reasons = [client.find_donor(prompt(1), NAMESPACE).reason for _ in range(3)]
    assert reasons == ["provider_error", "provider_error", "provider_disabled"]
    there[0] = True
    _wait_for(lambda: client.find_donor(prompt(1), NAMESPACE).reason == "provider_miss")
    after = [client.find_donor(prompt(1), NAMESPACE).reason for _ in range(5)]
    assert after == ["provider_miss"] * 5
    assert waits == [False, False, True, *[False] * 5]


_ERRORS = st.sampled_from(
    [RuntimeError, ValueError, OSError, MemoryError, KeyError, TypeError, grpc.RpcError]
)


@settings(max_examples=200, deadline=None)
@given(
    kind=_ERRORS,
    where=st.sampled_from(["lookup", "call", "answer"]),
    tokens=st.one_of(
        st.lists(st.integers(-(2**63), 2**63 - 1), max_size=4).map(np.array),
        st.just(np.zeros((2, 2), np.int64)),
        st.just(np.array([1.5])),
        st.none(),
        st.text(max_size=3),
        st.lists(st.integers(), max_size=3),
    ),
    options=st.dictionaries(
        st.sampled_from(
            ["exact_prefix_tokens", "request_id", "gates", "minimum_tier", "text", "nonsense"]
        ),
        st.one_of(st.integers(), st.text(), st.none(), st.floats(), st.just("\ud800")),
    ),
    namespace=st.one_of(st.just(NAMESPACE), st.text(max_size=70), st.none(), st.integers()),
    punctual=st.booleans(),
)
def test_no_transport_and_no_argument_makes_a_lookup_raise(
    kind: Any, where: str, tokens: Any, options: dict[str, Any], namespace: Any, punctual: bool
) -> None:
    client = Client(NOBODY, punctual=punctual)
    way = client._session.way()
    object.__setattr__(way, "connection", _Failing(kind("secret"), where))
    answer = client.find_donor(tokens, namespace, **options)
    assert isinstance(answer, Miss)
    assert "secret" not in answer.detail
    assert isinstance(client.get_manifest(tokens, k=namespace), Miss)
    assert isinstance(client.find_workers(tokens, namespace), Miss)
    assert client.validate(tokens) == ("stale", 0)
    assert client.renew(tokens, namespace) == "stale"
    assert client.release(tokens, namespace) is False


def test_more_tokens_than_a_prompt_may_have_are_not_sent() -> None:
    with Client(NOBODY) as client:
        answer = client.find_donor(np.zeros(1_048_577, np.uint32), NAMESPACE)
        check_miss(answer, "unsupported_request", "tokens are 1 to 1048576")


def test_a_refusal_of_our_own_says_why_and_repeats_no_value() -> None:
    with Client(NOBODY) as client:
        beyond = client.find_donor(prompt(1), NAMESPACE, exact_prefix_tokens=1025)
        check_miss(beyond, "unsupported_request", "exact_prefix_tokens are at most the tokens")
        garbled = client.find_donor(prompt(1), NAMESPACE, request_id=b"\xffsecret")
        check_miss(garbled, "unsupported_request", "Error")
        assert "secret" not in garbled.detail


def test_the_longest_prompt_is_looked_up(server: Server) -> None:
    longest = np.random.default_rng(1).integers(0, 2**32, 1_048_576, np.uint32)
    with Client(server.address, lookup_timeout_s=60) as client:
        check_miss(client.find_donor(longest, NAMESPACE), "provider_miss")


def test_an_incomplete_namespace_is_a_miss_without_a_call() -> None:
    with Client(NOBODY) as client:
        for incomplete in (make_namespace(adapter=""), kvatlas.Namespace()):
            answer = client.find_donor(prompt(1), incomplete)
            check_miss(answer, "namespace_mismatch", "is empty")
        check_miss(client.find_donor(prompt(1), "not an id"), "unsupported_request", "64 lower")
