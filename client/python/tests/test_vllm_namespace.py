"""An engine's namespace: whatever its KV depends on changes it, and the unknown is empty."""

from __future__ import annotations

import dataclasses
import os
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fake_engine import cache_config, engine_config

from kvatlas import Namespace, tenant_key
from kvatlas.vllm import engine
from kvatlas.vllm.namespace import adapter_identity, namespace_digest


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text('{"a": 1}')
    (folder / "model.safetensors").write_bytes(b"weights")
    (folder / "tokenizer_config.json").write_text('{"chat_template": "t"}')
    return folder


def namespace_of(model: Path, backend: str = "FAKE", **changes: Any) -> Namespace:
    return engine.namespace(engine_config({}, model, **changes), cache_config(64), backend)


def whole(namespace: Namespace) -> Namespace:
    return dataclasses.replace(namespace, adapter="none", tenant_key=tenant_key(None))


def test_every_field_is_known(model: Path) -> None:
    assert whole(namespace_of(model)).problem is None


CHANGES: dict[str, dict[str, Any]] = {
    "model": {"model_config__model": "other/model", "model_config__revision": "r"},
    "dtype": {"model_config__dtype": "torch.float16"},
    "dtype of quantized weights": {"model_config__quantization": "fp8"},
    "kv_cache_dtype": {"cache_config__cache_dtype": "fp8_e4m3"},
    "kv_layout": {"cache_config__kv_cache_layout": "LBHNC"},
    "tensor_parallel_size": {"parallel_config__tensor_parallel_size": 2},
    "pipeline_parallel_size": {"parallel_config__pipeline_parallel_size": 2},
    "tokenization": {"model_config__tokenizer_mode": "slow"},
    "rope_scaling": {
        "model_config__hf_text_config": types.SimpleNamespace(
            rope_parameters={"rope_type": "yarn", "factor": 2.0}
        )
    },
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_of_the_engine_changes_it(model: Path, change: str) -> None:
    before, after = namespace_of(model), namespace_of(model, **CHANGES[change])
    name = change.split(maxsplit=1)[0]
    assert getattr(before, name) != getattr(after, name)
    assert namespace_digest(whole(before)) != namespace_digest(whole(after))


def test_another_backend_changes_it(model: Path) -> None:
    assert namespace_of(model) != namespace_of(model, backend="OTHER")


EDITS: dict[str, Callable[[Path], object]] = {
    "weights replaced": lambda folder: (
        (folder / "model.safetensors").write_bytes(b"WEIGHTS"),
        os.utime(folder / "model.safetensors", (1, 1)),
    ),
    "configuration": lambda folder: (folder / "config.json").write_text('{"a": 2}'),
    "another file": lambda folder: (folder / "more.safetensors").write_bytes(b""),
}


@pytest.mark.parametrize("edit", EDITS)
def test_a_change_of_the_models_files_changes_it(model: Path, edit: str) -> None:
    before = namespace_of(model)
    EDITS[edit](model)
    assert namespace_of(model).model_revision != before.model_revision


def test_the_same_files_elsewhere_are_the_same_revision(model: Path) -> None:
    before = namespace_of(model)
    os.utime(model, (9, 9))
    assert namespace_of(model).model_revision == before.model_revision


UNKNOWN: dict[str, dict[str, Any]] = {
    "model_revision": {"model_config__model": "hub/name"},
    "model_revision of dummy weights": {"load_config__load_format": "dummy"},
    "model_revision of code": {"model_config__hf_overrides": dict},
    "kv_cache_dtype": {"cache_config__calculate_kv_scales": True},
    "kv_layout": {"cache_config__kv_cache_layout": None},
    "rope_scaling": {"model_config__hf_text_config": types.SimpleNamespace(rope_scaling=object())},
}


@pytest.mark.parametrize("unknown", UNKNOWN)
def test_what_is_not_known_is_empty(model: Path, unknown: str) -> None:
    name = unknown.split(maxsplit=1)[0]
    namespace = namespace_of(model, **UNKNOWN[unknown])
    assert getattr(namespace, name) == ""
    assert (whole(namespace).problem or "").startswith(name)


def test_a_hubs_commit_is_the_revision(model: Path) -> None:
    commit = types.SimpleNamespace(_commit_hash="abc123")
    changes = {"model_config__model": "hub/name", "model_config__hf_config": commit}
    assert namespace_of(model, **changes).model_revision == "abc123"


def test_adapters_are_known_by_their_files(tmp_path: Path) -> None:
    def lora(name: str, path: str) -> Any:
        return types.SimpleNamespace(lora_name=name, lora_path=path)

    folder = tmp_path / "adapter"
    folder.mkdir()
    (folder / "adapter.safetensors").write_bytes(b"a")
    assert adapter_identity(None) == "none"
    assert adapter_identity(lora("a", "hub/adapter")) == ""
    assert adapter_identity(lora("a", "")) == ""
    first = adapter_identity(lora("a", str(folder)))
    assert first.startswith("a@")
    (folder / "adapter.safetensors").write_bytes(b"bb")
    assert adapter_identity(lora("a", str(folder))) != first


def test_engines_have_names_that_none_other_begins_with() -> None:
    def name(engine_id: str) -> str:
        transfer = types.SimpleNamespace(engine_id=engine_id)
        return engine.worker_id(types.SimpleNamespace(kv_transfer_config=transfer))

    assert name("0c1d-4e_dp0") == "0c1d-4e_dp0"
    odd = {name(one) for one in ("a.0", "a/0", "-a", "", "x" * 101, "a 0")}
    assert len(odd) == 6
    assert all("." not in one and one.startswith("engine-") for one in odd)


def test_mixed_backends_are_unknown() -> None:
    def layer(name: str, isa: str | None = None) -> Any:
        backend = types.SimpleNamespace(get_name=lambda: name)
        return types.SimpleNamespace(get_attn_backend=lambda: backend, isa=isa)

    def backend_of(**layers: Any) -> str:
        compiled = types.SimpleNamespace(static_forward_context=layers)
        config = types.SimpleNamespace(compilation_config=compiled)
        return engine.attention_backend(config, dict.fromkeys(["a", "b"]))

    assert backend_of(a=layer("X"), b=layer("X")) == "X"
    assert backend_of(a=layer("X", "amx"), b=layer("X", "amx")) == "X/amx"
    assert backend_of(a=layer("X"), b=layer("Y")) == ""
    assert backend_of(a=layer("X")) == ""
