"""A prefix as the model holds it, and what the model says after it when blocks are hidden."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch
from transformers import DynamicCache

# Rows of the attention matrix that are made at once.
PREFILL_TOKENS = 512
# What a batch of probes may take for its copies of the cache.
CACHE_BYTES_MAX = 1 << 30
BATCH_MAX = 64

# Told how many steps are done, and of how many.
Progress = Callable[[int, int], object]


def no_progress(_done: int, _steps: int) -> None:
    """Tells nobody."""


class UnsupportedModel(ValueError):
    """A model in which not every layer attends to every token."""


@dataclasses.dataclass(frozen=True)
class Cartridge:
    """The keys and values of a prefix, layer by layer, in blocks of `block_size` tokens."""

    model: Any
    tokens: torch.Tensor
    block_size: int
    # Each [1, KV heads, tokens, head_dim]; keys with their rotation.
    keys: list[torch.Tensor]
    values: list[torch.Tensor]
    # Probes that are run at once; 0: as many as fit.
    batch: int = 0

    @property
    def length(self) -> int:
        """In tokens."""
        return len(self.tokens)

    @property
    def blocks(self) -> int:
        """The last one may not be full."""
        return -(-self.length // self.block_size)

    @property
    def layers(self) -> int:
        """How many of the model's layers attend."""
        return len(self.keys)

    def span(self, block: int) -> slice:
        """The tokens of a block."""
        return slice(block * self.block_size, min((block + 1) * self.block_size, self.length))

    def batch_max(self) -> int:
        """How many probes are run at once."""
        if self.batch:
            return self.batch
        stored: int = sum(t.numel() * t.element_size() for t in (*self.keys, *self.values))
        return max(1, min(BATCH_MAX, CACHE_BYTES_MAX // max(stored, 1)))


@dataclasses.dataclass(frozen=True)
class Reading:
    """What the model makes of a probe after the prefix, for each row of a batch."""

    # [layers, rows, probe tokens, width]; the last layer's after the final norm.
    hidden: torch.Tensor
    # [rows, probe tokens, vocabulary].
    logits: torch.Tensor


def prefill(
    model: Any, tokens: torch.Tensor, block_size: int, progress: Progress = no_progress
) -> Cartridge:
    """Runs the prefix through the model once. UnsupportedModel for windows and state spaces."""
    if not attends_to_all(model.config.get_text_config()):
        raise UnsupportedModel("a layer attends to a window, or not at all")
    cache = DynamicCache()
    with torch.inference_mode():
        for start in range(0, len(tokens), PREFILL_TOKENS):
            chunk = tokens[start : start + PREFILL_TOKENS]
            model(chunk[None].to(model.device), past_key_values=cache, use_cache=True)
            progress(start + len(chunk), len(tokens))
    keys, values = _stored(cache)
    for layer, key in enumerate(keys):
        if key is None or key.dim() != 4 or key.shape[2] != len(tokens):
            raise UnsupportedModel(f"layer {layer} does not keep the key of every token")
    return Cartridge(model, tokens, block_size, keys, values)


def read(cartridge: Cartridge, probe: torch.Tensor, hidden: Sequence[Sequence[int]]) -> Reading:
    """Runs the probe once a row, each with its own blocks hidden from attention.

    What the other blocks hold was computed with the hidden ones in view, as in an engine that
    skips blocks of a cached prefix.
    """
    rows, model = len(hidden), cartridge.model
    mask = torch.ones(rows, cartridge.length + len(probe), dtype=torch.long)
    for row, blocks in enumerate(hidden):
        for block in blocks:
            mask[row, cartridge.span(block)] = 0
    cache = DynamicCache()
    for layer, (key, value) in enumerate(zip(cartridge.keys, cartridge.values, strict=True)):
        cache.update(key.expand(rows, -1, -1, -1), value.expand(rows, -1, -1, -1), layer)
    positions = torch.arange(cartridge.length, cartridge.length + len(probe))
    out = model(
        probe.expand(rows, -1).to(model.device),
        attention_mask=mask.to(model.device),
        position_ids=positions.expand(rows, -1).to(model.device),
        past_key_values=cache,
        use_cache=True,
        output_hidden_states=True,
    )
    return Reading(torch.stack(out.hidden_states[1:]), out.logits)


def attends_to_all(config: Any) -> bool:
    """Whether every layer attends to every token, by what the model's configuration says."""
    kinds = getattr(config, "layer_types", None)
    if kinds:
        return all(kind == "full_attention" for kind in kinds)
    return not getattr(config, "sliding_window", None)


def _stored(cache: Any) -> tuple[list[Any], list[Any]]:
    """By layer, as this and older releases of transformers keep them."""
    if hasattr(cache, "layers"):
        return [layer.keys for layer in cache.layers], [layer.values for layer in cache.layers]
    return list(cache.key_cache), list(cache.value_cache)
