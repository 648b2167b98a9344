"""Reads and writes an engine's paged KV cache, block by block, as bytes."""

from __future__ import annotations

import hashlib
import threading
from typing import Any, Protocol

import numpy as np

from kvatlas.kvstore.record import Pages


class PagedCache(Protocol):
    """An engine's KV cache. The bytes of a block are those of its layers, one after the other."""

    # Digest of the layers' names, shapes and types.
    layout: str

    def read(self, block_ids: tuple[int, ...]) -> Pages:
        """[blocks, bytes], a copy."""

    def write(self, block_ids: tuple[int, ...], pages: Pages) -> None:
        """Fills the blocks; they are filled when it returns."""


class UnsupportedCache(Exception):
    """Why a KV cache cannot be read block by block."""


def paged_cache(caches: dict[str, Any], blocks: int) -> PagedCache:
    """The layers' caches by name, as the engine registers them; `blocks` is how many it manages."""
    if not caches:
        raise UnsupportedCache("no layers")
    if all(isinstance(cache, np.ndarray) for cache in caches.values()):
        return NumpyCache(caches)
    return TorchCache(caches, blocks)


class NumpyCache:
    """Layers in arrays whose first axis is the block."""

    def __init__(self, caches: dict[str, np.ndarray[Any, Any]]) -> None:
        self._layers = list(caches.values())
        self.layout = _layout_digest(
            [(name, layer.shape[1:], layer.dtype.str) for name, layer in caches.items()]
        )

    def read(self, block_ids: tuple[int, ...]) -> Pages:
        """[blocks, bytes]"""
        ids = list(block_ids)
        return np.concatenate(
            [layer[ids].reshape(len(ids), -1).view(np.uint8) for layer in self._layers], axis=1
        )

    def write(self, block_ids: tuple[int, ...], pages: Pages) -> None:
        """Fills the blocks."""
        start = 0
        for layer in self._layers:
            size = layer[0].nbytes
            part = np.ascontiguousarray(pages[:, start : start + size])
            layer[list(block_ids)] = part.view(layer.dtype).reshape(len(pages), *layer.shape[1:])
            start += size


class TorchCache:
    """Layers in torch tensors, on any device.

    Which axis is the block's follows from how many blocks there are: the first one in new versions
    of vLLM, the second where keys and values come first. A kernel may use smaller blocks than the
    scheduler; one of the scheduler's is then a run of the kernel's.
    """

    def __init__(self, caches: dict[str, Any], blocks: int) -> None:
        import torch  # noqa: PLC0415

        self._torch = torch
        self._layers: list[tuple[Any, int, int]] = []
        seen = set()
        described = []
        for name, cache in caches.items():
            if not isinstance(cache, torch.Tensor):
                raise UnsupportedCache(f"layer {name} is no single tensor")
            # Layers that share another's cache.
            place = (cache.data_ptr(), tuple(cache.shape))
            if place in seen:
                continue
            seen.add(place)
            axis, ratio = _block_axis(tuple(cache.shape), blocks)
            self._layers.append((cache, axis, ratio))
            rest = cache.shape[:axis] + cache.shape[axis + 1 :]
            described.append((name, tuple(rest), ratio, str(cache.dtype)))
        self.layout = _layout_digest(described)
        # Copies on a stream of their own must not mix with another thread's.
        self._lock = threading.Lock()
        device = self._layers[0][0].device
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def read(self, block_ids: tuple[int, ...]) -> Pages:
        """[blocks, bytes]"""
        whole: Pages = self._on_stream(self._read, block_ids)
        return whole

    def write(self, block_ids: tuple[int, ...], pages: Pages) -> None:
        """Fills the blocks; they are filled when it returns."""
        self._on_stream(self._write, block_ids, pages)

    def _read(self, block_ids: tuple[int, ...]) -> Pages:
        parts = []
        for layer, axis, ratio in self._layers:
            ids = self._ids(block_ids, ratio, layer.device)
            chosen = layer.index_select(axis, ids).movedim(axis, 0).contiguous().cpu()
            parts.append(chosen.reshape(len(block_ids), -1).view(self._torch.uint8))
        whole: Pages = self._torch.cat(parts, dim=1).numpy()
        return whole

    def _write(self, block_ids: tuple[int, ...], pages: Pages) -> None:
        start = 0
        for layer, axis, ratio in self._layers:
            rest = layer.shape[:axis] + layer.shape[axis + 1 :]
            size = rest.numel() * layer.element_size() * ratio
            part = np.ascontiguousarray(pages[:, start : start + size])
            start += size
            filled = self._torch.from_numpy(part).view(layer.dtype)
            filled = filled.reshape(len(block_ids) * ratio, *rest).movedim(0, axis)
            ids = self._ids(block_ids, ratio, layer.device)
            target = layer
            if layer.element_size() == 1:
                # Eight-bit floats have no index_copy_ of their own.
                target, filled = layer.view(self._torch.uint8), filled.view(self._torch.uint8)
            target.index_copy_(axis, ids, filled.to(layer.device))

    def _ids(self, block_ids: tuple[int, ...], ratio: int, device: Any) -> Any:
        ids = np.asarray(block_ids, np.int64)
        if ratio > 1:
            ids = (ids[:, None] * ratio + np.arange(ratio)).reshape(-1)
        return self._torch.from_numpy(ids).to(device)

    def _on_stream(self, work: Any, *arguments: Any) -> Any:
        if self._stream is None:
            return work(*arguments)
        with self._lock, self._torch.cuda.stream(self._stream):
            result = work(*arguments)
            self._stream.synchronize()
        return result


def _block_axis(shape: tuple[int, ...], blocks: int) -> tuple[int, int]:
    """The axis that counts blocks, and how many of the kernel's blocks make one."""
    if blocks > 2:
        for axis in range(min(2, len(shape))):
            if shape[axis] and shape[axis] % blocks == 0:
                return axis, shape[axis] // blocks
    raise UnsupportedCache("no axis of the cache counts the scheduler's blocks")


def _layout_digest(described: list[Any]) -> str:
    return hashlib.sha256(repr(described).encode()).hexdigest()[:32]
