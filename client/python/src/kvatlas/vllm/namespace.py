"""The namespace of a vLLM engine: every field that its KV depends on, or empty where unknown.

An empty field makes every look-up a miss with `namespace_mismatch`. That is meant: KV of a model
that is only perhaps the same must not be read.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kvatlas.namespace import Namespace

FINGERPRINT_DIGITS = 32
# Configuration is compared by content, weights by name, size and time of change.
CONTENT_BYTES_MAX = 1024 * 1024
FILES_MAX = 10_000


def engine_namespace(vllm_config: Any, block_size: int, attention_backend: str) -> Namespace:
    """Everything but adapter and tenant, which are each request's own."""
    model = vllm_config.model_config
    cache = vllm_config.cache_config
    parallel = vllm_config.parallel_config
    revision = _known(lambda: _model_revision(vllm_config))
    has_tokenizer = not getattr(model, "skip_tokenizer_init", False)
    return Namespace(
        model=str(model.model),
        model_revision=revision,
        tokenizer=str(model.tokenizer) if has_tokenizer else "none",
        tokenizer_revision=_known(lambda: _tokenizer_revision(model)) if has_tokenizer else "none",
        tokenization=f"mode={getattr(model, 'tokenizer_mode', '')}",
        chat_template=_known(lambda: _chat_template(model)) if has_tokenizer else "none",
        dtype=_known(lambda: _dtype(model)),
        kv_cache_dtype=_known(lambda: _kv_cache_dtype(cache)),
        block_size=block_size,
        kv_layout=_known(lambda: _kv_layout(cache)),
        attention_backend=attention_backend,
        tensor_parallel_size=parallel.tensor_parallel_size,
        pipeline_parallel_size=parallel.pipeline_parallel_size,
        rope_scaling=_known(lambda: _rope_scaling(model)),
    )


def adapter_identity(lora_request: Any) -> str:
    """ "none" without an adapter; its name and the fingerprint of its files; empty when unknown."""
    if lora_request is None:
        return "none"
    path = getattr(lora_request, "lora_path", "")
    if not path or not Path(path).is_dir():
        return ""
    return _known(lambda: f"{lora_request.lora_name}@{_fingerprint(path)}")


def namespace_digest(namespace: Namespace) -> str:
    """What captured pages are bound to."""
    fields = {name: getattr(namespace, name) for name in namespace.__dataclass_fields__}
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()


def _known(field: Callable[[], str]) -> str:
    """Empty where an engine of another version has no such thing."""
    try:
        return field()
    except (AttributeError, KeyError, OSError, TypeError, ValueError, ImportError):
        return ""


def _model_revision(vllm_config: Any) -> str:
    model = vllm_config.model_config
    if str(vllm_config.load_config.load_format) == "dummy":
        return ""
    overrides = getattr(model, "hf_overrides", None)
    if callable(overrides):
        return ""
    revision = _revision(model.model, model.revision, model.hf_config)
    if revision and overrides:
        text = json.dumps(overrides, sort_keys=True, default=repr)
        revision += f";overrides={hashlib.sha256(text.encode()).hexdigest()[:FINGERPRINT_DIGITS]}"
    return revision


def _tokenizer_revision(model: Any) -> str:
    if model.tokenizer == model.model and model.tokenizer_revision == model.revision:
        return _revision(model.model, model.revision, model.hf_config)
    return _revision(model.tokenizer, model.tokenizer_revision, None)


def _revision(name: str, revision: str | None, hf_config: Any) -> str:
    """A folder's fingerprint, or the commit that a hub's name stands for."""
    if Path(name).is_dir():
        return _fingerprint(name)
    commit = getattr(hf_config, "_commit_hash", None)
    return commit or revision or ""


def _fingerprint(folder: str) -> str:
    """Changes when a file is added, removed, replaced or rewritten."""
    digest = hashlib.sha256()
    paths = sorted(path for path in Path(folder).rglob("*") if path.is_file())
    if not paths or len(paths) > FILES_MAX:
        return ""
    for path in paths:
        stat = path.stat()
        digest.update(f"{path.relative_to(folder)}\0{stat.st_size}\0".encode())
        if path.suffix == ".json" and stat.st_size <= CONTENT_BYTES_MAX:
            digest.update(hashlib.sha256(path.read_bytes()).digest())
        else:
            digest.update(f"{stat.st_mtime_ns}\0".encode())
    return f"files:{digest.hexdigest()[:FINGERPRINT_DIGITS]}"


def _chat_template(model: Any) -> str:
    """Digest of the tokenizer's own template; "none" where it has none."""
    template = _tokenizer_file(model, "chat_template.jinja")
    if template is not None:
        text = template.read_text()
    else:
        config = _tokenizer_file(model, "tokenizer_config.json")
        if config is None:
            return ""
        given = json.loads(config.read_text()).get("chat_template")
        if given is None:
            return "none"
        text = json.dumps(given)
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()[:FINGERPRINT_DIGITS]}"


def _tokenizer_file(model: Any, name: str) -> Path | None:
    if Path(model.tokenizer).is_dir():
        path = Path(model.tokenizer) / name
        return path if path.is_file() else None
    from huggingface_hub import (  # type: ignore[import-not-found,unused-ignore]  # noqa: PLC0415
        try_to_load_from_cache,
    )

    cached = try_to_load_from_cache(model.tokenizer, name, revision=model.tokenizer_revision)
    return Path(cached) if isinstance(cached, str) else None


def _dtype(model: Any) -> str:
    """The compute type, and how weights are quantized, which changes KV too."""
    dtype = str(model.dtype).removeprefix("torch.")
    quantization = getattr(model, "quantization", None)
    return f"{dtype};weights={quantization}" if quantization else dtype


def _kv_cache_dtype(cache: Any) -> str:
    # Scales that each process finds for itself make equal bytes mean different things.
    if getattr(cache, "calculate_kv_scales", False):
        return ""
    return str(cache.cache_dtype)


def _kv_layout(cache: Any) -> str:
    """As the engine has resolved it; older versions have a function for it."""
    resolved = getattr(cache, "kv_cache_layout", None)
    if resolved:
        return str(resolved)
    from vllm.v1.attention.backends.utils import get_kv_cache_layout  # noqa: PLC0415

    return str(get_kv_cache_layout())


def _rope_scaling(model: Any) -> str:
    """The model's RoPE parameters in canonical JSON."""
    config = model.hf_text_config
    given = {
        name: value
        for name in ("rope_parameters", "rope_scaling", "rope_theta", "partial_rotary_factor")
        if (value := getattr(config, name, None)) is not None
    }
    if not given:
        return "none"
    text = json.dumps(given, sort_keys=True, default=_plain)
    if len(text) <= 256:
        return text
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def _plain(value: Any) -> Any:
    if hasattr(value, "to_dict"):
        return value.to_dict()
    raise TypeError("no plain value")
