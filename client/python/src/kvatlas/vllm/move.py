"""Moves keys to another position: experimental, for KV that serves one request only.

A key is kept with its position's rotation in it (RoPE), so one that is read for another position is
rotated by the difference. Where in a block a backend puts each key is found out by writing known
ones through the backend itself.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt

from kvatlas.kvstore.record import Pages

# Models whose keys are rotated as below, in halves, over the whole head.
MODEL_TYPES = ("llama", "mistral", "qwen2", "qwen3")
# Exact in any type that keys are kept in but the eight-bit ones.
DIGIT = 128

Floats = npt.NDArray[np.float32]
Places = npt.NDArray[np.int64]


class CannotMove(Exception):
    """Why keys cannot be moved in this engine."""


def rotated(keys: Floats, by: int, theta: float) -> Floats:
    """Keys of any position, as they are `by` positions later; [..., channels].

    Channels i and i + half turn by the angle `by` * theta ** (-2 i / channels) (RoFormer).
    """
    half = keys.shape[-1] // 2
    # In double precision: positions go to a million.
    angles = by * theta ** (-np.arange(half, dtype=np.float64) / half)
    cos, sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
    first, second = keys[..., :half], keys[..., half:]
    return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


def rope_theta(hf_text_config: Any) -> float:
    """The base of a plain RoPE. CannotMove: the model's is another."""
    kind = getattr(hf_text_config, "model_type", "")
    if kind not in MODEL_TYPES:
        raise CannotMove(f"keys of a model of type {kind!r}")
    given = getattr(hf_text_config, "rope_parameters", None) or {}
    scaling = given or getattr(hf_text_config, "rope_scaling", None) or {}
    if scaling.get("rope_type", scaling.get("type", "default")) != "default":
        raise CannotMove("scaled RoPE")
    if getattr(hf_text_config, "partial_rotary_factor", 1.0) not in (None, 1.0):
        raise CannotMove("partial RoPE")
    theta = given.get("rope_theta", getattr(hf_text_config, "rope_theta", None))
    if not theta:
        raise CannotMove("the base of RoPE is not known")
    return float(theta)


@dataclasses.dataclass(frozen=True)
class Packing:
    """Where each element of a block's keys and values lies in it: [tokens, heads, channels]."""

    keys: Places
    values: Places

    @classmethod
    def of_digits(cls, digits: list[npt.NDArray[Any]], shape: tuple[int, int, int]) -> Packing:
        """From blocks that hold the digits of each element's number, keys before values.

        CannotMove: the blocks are no rearrangement of what was written.
        """
        count = shape[0] * shape[1] * shape[2]
        numbers = sum(
            np.rint(digit).astype(np.int64) * DIGIT**power for power, digit in enumerate(digits)
        )
        places = np.argsort(numbers, kind="stable")
        if not np.array_equal(np.asarray(numbers)[places], np.arange(2 * count)):
            raise CannotMove("a backend that keeps more than keys and values")
        return cls(places[:count].reshape(shape), places[count:].reshape(shape))

    def moved(self, blocks: Floats, start: int, count: int, by: int, theta: float) -> Floats:
        """Tokens `start` to `start + count` of some blocks, in blocks of their own, `by` later."""
        tokens = self.keys.shape[0]
        keys = blocks[:, self.keys].reshape(-1, *self.keys.shape[1:])[start : start + count]
        values = blocks[:, self.values].reshape(-1, *self.values.shape[1:])[start : start + count]
        out = np.empty((count // tokens, blocks.shape[1]), np.float32)
        by_block = (count // tokens, *self.keys.shape)
        out[:, self.keys] = rotated(keys, by, theta).reshape(by_block)
        out[:, self.values] = values.reshape(by_block)
        return out


def digits_of(shape: tuple[int, int, int], power: int) -> tuple[Floats, Floats]:
    """What to write as keys and as values, so that the block tells where they went."""
    count = shape[0] * shape[1] * shape[2]
    digits = (np.arange(2 * count) // DIGIT**power % DIGIT).astype(np.float32)
    return digits[:count].reshape(shape), digits[count:].reshape(shape)


class Mover:
    """For one engine's layers, in the order of their bytes in a page."""

    def __init__(self, caches: dict[str, Any], layers: dict[str, Any], theta: float) -> None:
        import torch  # noqa: PLC0415

        self._torch = torch
        self._theta = theta
        self._layers = [
            (cache.dtype, self._probe(cache, layers[name])) for name, cache in caches.items()
        ]

    def move(self, pages: Pages, start: int, count: int, by: int) -> Pages:
        """Tokens `start` to `start + count` of the pages, which fill pages of their own."""
        torch, place, parts = self._torch, 0, []
        for dtype, packing in self._layers:
            size = 2 * packing.keys.size * dtype.itemsize
            part = np.ascontiguousarray(pages[:, place : place + size])
            place += size
            blocks = torch.from_numpy(part).view(dtype).float().numpy()
            moved = packing.moved(blocks, start, count, by, self._theta)
            parts.append(torch.from_numpy(moved).to(dtype).view(torch.uint8).numpy())
        return np.concatenate(parts, axis=1)

    def _probe(self, cache: Any, layer: Any) -> Packing:
        torch = self._torch
        if cache.dim() != 4 or cache.dtype.itemsize == 1:
            raise CannotMove("a cache of another form")
        heads, tokens = cache.shape[1], cache.shape[2]
        shape = (tokens, heads, int(layer.head_size))
        if heads != layer.num_kv_heads or cache[0].numel() != 2 * tokens * heads * shape[2]:
            raise CannotMove("a cache of another form")
        slots = torch.arange(tokens, device=cache.device)
        digits: list[npt.NDArray[Any]] = []
        while DIGIT ** len(digits) < cache[0].numel():
            block = torch.zeros((1, *cache.shape[1:]), dtype=cache.dtype, device=cache.device)
            written = (torch.from_numpy(part) for part in digits_of(shape, len(digits)))
            keys, values = (part.to(cache.device, cache.dtype) for part in written)
            layer.impl.do_kv_cache_update(layer, keys, values, block, slots)
            digits.append(block.float().cpu().numpy().reshape(-1))
        return Packing.of_digits(digits, shape)
