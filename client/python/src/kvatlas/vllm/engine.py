"""What the connector reads from vLLM's configuration, over the versions that it works with."""

from __future__ import annotations

import hashlib
import logging
import re
from typing import Any

from kvatlas.namespace import Namespace
from kvatlas.vllm.decide import Held
from kvatlas.vllm.move import CannotMove, Mover, rope_theta
from kvatlas.vllm.namespace import engine_namespace

# Cache groups whose blocks hold every token's KV from the start.
WHOLE_SPECS = ("FullAttentionSpec", "MLAAttentionSpec")

# Of a worker's cache, in copies at a time, which have to fit its machine's memory.
CAPTURES_BYTES_MAX = 8 * 1024**3
# Of an engine's blocks, in copies at a time, while others run.
HELD_SHARE_MAX = 0.5

_PLAIN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}")
_log = logging.getLogger("kvatlas.vllm")


def check_mode(vllm_config: Any, mode: str) -> None:
    """ValueError where the engine's configuration and the mode do not go together."""
    if mode == "discovery_only":
        return
    transfer = vllm_config.kv_transfer_config
    if getattr(transfer, "kv_load_failure_policy", "fail") != "recompute":
        raise ValueError(
            f'mode {mode} needs "kv_load_failure_policy": "recompute" in the kv-transfer-config: '
            "with the default, `fail`, a donor that has gone would fail the request"
        )
    if mode == "request_only" and vllm_config.cache_config.enable_prefix_caching:
        raise ValueError(
            "mode request_only needs prefix caching off (--no-enable-prefix-caching): vLLM would "
            "commit KV that is not exact to its prefix cache, for every later request"
        )


def unsupported(vllm_config: Any, kv_cache_config: Any, mode: str) -> str:
    """Why no request of this engine can be served; empty where they can."""
    if mode == "discovery_only":
        return ""
    if getattr(vllm_config, "speculative_config", None) is not None:
        return "speculative decoding"
    parallel = vllm_config.parallel_config
    for name in ("decode_context_parallel_size", "prefill_context_parallel_size"):
        if getattr(parallel, name, 1) > 1:
            return "context parallelism"
    groups = getattr(kv_cache_config, "kv_cache_groups", None)
    if groups is None:
        return "an engine that does not describe its cache"
    specs = [type(group.kv_cache_spec).__name__ for group in groups]
    if len(specs) == 1 and specs[0] in WHOLE_SPECS:
        return ""
    return f"a hybrid or partial layout: {', '.join(specs)}"


def namespace(vllm_config: Any, kv_cache_config: Any, attention_backend: str) -> Namespace:
    """The engine's, without adapter and tenant."""
    return engine_namespace(
        vllm_config, block_size(vllm_config, kv_cache_config), attention_backend
    )


def block_size(vllm_config: Any, kv_cache_config: Any) -> int:
    """Tokens per block, as the scheduler counts."""
    groups = getattr(kv_cache_config, "kv_cache_groups", None)
    if groups:
        return int(groups[0].kv_cache_spec.block_size)
    return int(vllm_config.cache_config.block_size)


def managed_blocks(vllm_config: Any, kv_cache_config: Any) -> int:
    """How many blocks the scheduler gives out."""
    return int(
        getattr(kv_cache_config, "num_blocks", None) or vllm_config.cache_config.num_gpu_blocks
    )


def held(vllm_config: Any, kv_cache_config: Any) -> Held:
    """How many blocks copies may hold of this engine's."""
    blocks = getattr(kv_cache_config, "num_blocks", None) or vllm_config.cache_config.num_gpu_blocks
    if not blocks:
        return Held()
    tensors = getattr(kv_cache_config, "kv_cache_tensors", None) or ()
    block_bytes = sum(tensor.size for tensor in tensors) // blocks
    copied = CAPTURES_BYTES_MAX // block_bytes if block_bytes else blocks
    return Held(max(1, int(blocks * HELD_SHARE_MAX)), min(blocks, copied))


def attention_backend(vllm_config: Any, kv_caches: dict[str, Any]) -> str:
    """The backend that all layers use, with its instruction set where that changes how it packs
    KV; empty when unknown or mixed."""
    layers = vllm_config.compilation_config.static_forward_context
    names = set()
    for name in kv_caches:
        layer = layers.get(name)
        if layer is None or not hasattr(layer, "get_attn_backend"):
            return ""
        isa = getattr(layer, "isa", None)
        backend = str(layer.get_attn_backend().get_name())
        names.add(f"{backend}/{isa}" if isa else backend)
    return names.pop() if len(names) == 1 else ""


def worker_id(vllm_config: Any) -> str:
    """The engine's id, as a name that files can have and that no other engine's begins with."""
    given = str(vllm_config.kv_transfer_config.engine_id)
    if _PLAIN_ID.fullmatch(given):
        return given
    return f"engine-{hashlib.sha256(given.encode()).hexdigest()[:16]}"


def shard_name(vllm_config: Any) -> str:
    """This worker's share of every block: its rank among tensor and pipeline parallel workers."""
    parallel = vllm_config.parallel_config
    world = parallel.tensor_parallel_size * parallel.pipeline_parallel_size
    return f"{parallel.rank % world}-of-{world}"


def moves(vllm_config: Any, mode: str) -> bool:
    """Whether keys may be moved to another position."""
    if mode != "request_only":
        return False
    try:
        rope_theta(vllm_config.model_config.hf_text_config)
    except CannotMove as reason:
        _log.warning("only KV of the same position will be loaded: %s", reason)
        return False
    return True


def mover(vllm_config: Any, mode: str, kv_caches: dict[str, Any]) -> Mover | None:
    """What moves this worker's keys; None where they are not moved."""
    if not moves(vllm_config, mode):
        return None
    layers = vllm_config.compilation_config.static_forward_context
    try:
        return Mover(kv_caches, layers, rope_theta(vllm_config.model_config.hf_text_config))
    except CannotMove as reason:
        _log.warning("only KV of the same position will be loaded: %s", reason)
        return None
