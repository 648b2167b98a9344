"""Namespaces, settings and the circuit breaker: what needs no server."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from conftest import make_namespace
from hypothesis import given
from hypothesis import strategies as st

from kvatlas import Breaker, Namespace, tenant_key
from kvatlas.settings import Settings, SettingsError


def test_the_tenant_key_is_version_one() -> None:
    assert tenant_key("tenant-acme") == "semblend:tenant:v1:9332cc3fc0ec09d0f04fa8e1e08637b5"
    assert tenant_key(None) == "semblend:tenant:v1:none"
    for blank in ("", " ", "\t\n", "\u00a0"):
        with pytest.raises(ValueError, match="blank"):
            tenant_key(blank)


def test_a_complete_namespace_has_no_problem_and_every_field_is_sent() -> None:
    namespace = make_namespace(multimodal_hashes=["a", "b"])
    assert namespace.problem is None
    wire = namespace.to_proto()
    names = {field.name for field in wire.DESCRIPTOR.fields}
    assert names == {field.name for field in dataclasses.fields(Namespace)}
    assert all(getattr(wire, name) for name in names)
    assert namespace.selector.namespace == wire


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *((field.name, "") for field in dataclasses.fields(Namespace) if field.type == "str"),
        *((field.name, 0) for field in dataclasses.fields(Namespace) if field.type == "int"),
        ("block_size", 4097),
        ("block_size", True),
        ("block_size", "16"),
        ("tensor_parallel_size", 65537),
        ("pipeline_parallel_size", -1),
        ("adapter", "a" * 513),
        ("adapter", "\u00e4" * 257),
        ("model", 7),
        ("multimodal_hashes", [""]),
        ("multimodal_hashes", ["h"] * 65),
        ("multimodal_hashes", ["h" * 129]),
        ("tenant_key", "my-secret-salt"),
        ("tenant_key", "semblend:tenant:v1:" + "A" * 32),
    ],
)
def test_a_field_that_is_missing_or_out_of_range_is_named_and_not_shown(
    field: str, value: Any
) -> None:
    problem = make_namespace(**{field: value}).problem
    assert problem is not None
    assert problem.startswith(field)
    assert "secret" not in problem


def test_a_field_that_is_none_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="no field of a namespace: salt, temperature"):
        Namespace.from_dict({"temperature": 1, "salt": "x"})


def test_settings_have_defaults() -> None:
    assert Settings.load({}, {}) == Settings()
    assert (Settings().address, Settings().mode) == ("127.0.0.1:50051", "discovery_only")
    assert Settings().lookup_timeout_s == 0.005


GIVEN: dict[str, Any] = {
    "address": "unix:/run/k.sock",
    "mode": "exact_prefix",
    "min_prompt_tokens": 256,
    "min_reuse_tokens": 128,
    "min_similarity": 0.5,
    "lookup_timeout_ms": 2.5,
    "audit_path": "audit.jsonl",
    "kv_store": "/var/kv",
    "token_file": "token",
    "tls_ca": "ca.pem",
}


def test_every_key_is_taken_from_the_config_and_from_the_environment() -> None:
    assert set(GIVEN) == {field.name for field in dataclasses.fields(Settings)}
    expected = Settings(**GIVEN)
    assert Settings.load(GIVEN, {}) == expected
    environ = {f"KVATLAS_{key.upper()}": str(value) for key, value in GIVEN.items()}
    assert Settings.load({}, environ) == expected
    # The config is nearer, and an empty variable is none.
    assert Settings.load({"mode": "request_only"}, environ).mode == "request_only"
    assert Settings.load({}, {"KVATLAS_MODE": ""}) == Settings()


@pytest.mark.parametrize("mode", ["discovery_only", "exact_prefix", "request_only"])
def test_modes_may_be_spelled_as_the_servers_are(mode: str) -> None:
    hyphened = mode.replace("_", "-")
    assert Settings.load({"mode": hyphened}, {}).mode == mode
    assert Settings.load({}, {"KVATLAS_MODE": hyphened}).mode == mode


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("mode", "materialise"),
        ("address", 7),
        ("min_prompt_tokens", -1),
        ("min_prompt_tokens", "many"),
        ("min_prompt_tokens", True),
        ("min_similarity", 1.5),
        ("min_similarity", float("nan")),
        ("lookup_timeout_ms", 0),
        ("lookup_timeout_ms", "soon"),
        ("kv_store", ""),
    ],
)
def test_a_value_that_does_not_fit_is_named(key: str, value: Any) -> None:
    with pytest.raises(SettingsError, match=f"^{key}: "):
        Settings.load({key: value}, {})


@pytest.mark.parametrize("mode", ["materialize", "disabled"])
def test_a_mode_of_the_server_is_refused_as_such(mode: str) -> None:
    with pytest.raises(SettingsError, match=f"^KVATLAS_MODE: .*; {mode} is a mode of the server$"):
        Settings.load({}, {"KVATLAS_MODE": mode})
    assert Settings.load({}, {"KVATLAS_MODE": mode}, only=("address",)) == Settings()


@pytest.mark.parametrize(("key", "text"), [("mode", "on"), ("min_reuse_tokens", "1.5")])
def test_a_variable_that_does_not_fit_is_named(key: str, text: str) -> None:
    with pytest.raises(SettingsError, match=f"^KVATLAS_{key.upper()}: must be"):
        Settings.load({}, {f"KVATLAS_{key.upper()}": text})


def test_unknown_keys_are_named() -> None:
    with pytest.raises(SettingsError, match="unknown settings: adress, kv_stor; known are address"):
        Settings.load({"adress": 1, "kv_stor": 2, "ours": 3}, {}, also=("ours",))


def test_the_breaker_opens_after_failures_in_a_row_and_lets_one_probe_through() -> None:
    breaker = Breaker(failures_max=3, open_s=1.0)
    for now in (0.0, 0.1):
        breaker.failed(now)
    breaker.succeeded()
    for now in (1.0, 1.1, 1.2):
        assert breaker.allows(now)
        breaker.failed(now)
    assert not breaker.allows(2.1)
    assert breaker.allows(2.2), "the probe"
    assert not breaker.allows(2.3), "only one"
    breaker.failed(2.4)
    assert not breaker.allows(3.3)
    assert breaker.allows(3.4)
    breaker.succeeded()
    assert breaker.allows(3.41)
    assert breaker.allows(3.42)
    fresh = breaker.fresh()
    assert (fresh.failures_max, fresh.open_s) == (3, 1.0)


@given(
    st.lists(st.tuples(st.booleans(), st.floats(0, 0.4)), max_size=60),
    st.integers(1, 4),
)
def test_an_open_breaker_lets_at_most_one_call_through_a_second(
    calls: list[tuple[bool, float]], failures_max: int
) -> None:
    breaker, now, in_a_row = Breaker(failures_max, open_s=1.0), 0.0, 0
    last = float("-inf")
    for works, pause in calls:
        now += pause
        if not breaker.allows(now):
            assert in_a_row >= failures_max
            assert now < last + 1.0
            continue
        if in_a_row >= failures_max:
            assert now >= last + 1.0
        last = now
        in_a_row = 0 if works else in_a_row + 1
        breaker.succeeded() if works else breaker.failed(now)


@pytest.mark.parametrize("limits", [(0, 1.0), (1, 0.0), (1, float("nan"))])
def test_a_breaker_without_limits_is_none(limits: tuple[int, float]) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        Breaker(*limits)
