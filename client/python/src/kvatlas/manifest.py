"""Manifests in the shapes that engines take: a BlockManifestProvider, skip lists, padded arrays."""

from __future__ import annotations

import dataclasses
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from kvatlas.answers import Manifest, Miss
from kvatlas.client import Client

# Scored against the request's own query, so that without one there is nothing to score.
QUERY_AWARE = frozenset({"kri-q", "kri-q-quest", "kri-t"})
ENTRIES_MAX = 256
# How long a newly put prior may go unseen.
MAX_AGE_S = 1.0


@dataclasses.dataclass(frozen=True)
class BlockManifest:
    """The blocks that a request attends to, as engines take them: ascending, from 0."""

    block_indices: tuple[int, ...]
    total_blocks: int
    K: int
    prior_type: str
    resource_id: str

    def __post_init__(self) -> None:
        if len(self.block_indices) != self.K:
            raise ValueError(f"K is {self.K}, but there are {len(self.block_indices)} blocks")
        if self.total_blocks <= 0:
            raise ValueError("total_blocks is at least 1")
        if any(not 0 <= block < self.total_blocks for block in self.block_indices):
            raise ValueError(f"a block outside 0 to {self.total_blocks - 1}")


class _HasBlocks(Protocol):
    @property
    def block_indices(self) -> tuple[int, ...]: ...


@dataclasses.dataclass
class _Kept:
    manifest: Any
    generation: int
    asked_s: float
    lease_ends_s: float


class _Cache:
    """What one process keeps: a child that was forked begins with nothing."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.lock = threading.Lock()
        self.kept: dict[tuple[str, str | None, int], _Kept] = {}


class KvatlasManifestProvider:
    """A BlockManifestProvider that asks kvatlas, and remembers a little.

    An answer is used again for `max_age_s`, and longer only while its lease holds and the server
    does not answer. What an older generation of a prior answered is dropped with it.
    """

    def __init__(
        self,
        client: Client,
        *,
        algorithm: str = "",
        policy: str = "",
        query_aware: bool | None = None,
        max_age_s: float = MAX_AGE_S,
        entries_max: int = ENTRIES_MAX,
        make: Callable[..., Any] = BlockManifest,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`make` is the engine's own BlockManifest class, given the five fields by name.

        `query_aware`: a query_hash is required; by default for the algorithms that score online.
        """
        self._client = client
        self._algorithm = algorithm
        self._policy = policy
        self._query_aware = algorithm in QUERY_AWARE if query_aware is None else query_aware
        self._max_age_s = max_age_s
        self._entries_max = entries_max
        self._make = make
        self._clock = clock
        self._cache = _Cache()

    def get_manifest(self, *, prefix_hash: str, query_hash: str | None, K: int) -> Any | None:
        """The K blocks to read, or None: read every block. Never fails for want of a server.

        ValueError: no query_hash for a query-aware provider.
        """
        if self._query_aware and query_hash is None:
            raise ValueError("a query-aware provider needs a query_hash")
        key = (prefix_hash, query_hash, K)
        cache = self._own_cache()
        asked = self._clock()
        with cache.lock:
            kept = cache.kept.get(key)
        if kept and asked < min(kept.asked_s + self._max_age_s, kept.lease_ends_s):
            return kept.manifest
        answer = self._client.get_manifest(
            prefix_hash,
            k=K,
            query_hash=query_hash or "",
            algorithm=self._algorithm,
            policy=self._policy,
        )
        if isinstance(answer, Manifest) and not answer.heads:
            return self._keep(cache, key, answer, asked)
        return self._without_answer(cache, key, answer, kept)

    def _keep(
        self, cache: _Cache, key: tuple[str, str | None, int], answer: Manifest, asked: float
    ) -> Any:
        made = self._make(
            block_indices=answer.block_indices,
            total_blocks=answer.total_blocks,
            K=answer.effective_k,
            prior_type=answer.algorithm or answer.policy,
            resource_id=key[0],
        )
        lease_ends = asked + answer.lease.ttl_ms / 1000
        with cache.lock:
            _forget_superseded(cache, key, answer.prior_generation)
            cache.kept.pop(key, None)
            while len(cache.kept) >= self._entries_max:
                del cache.kept[next(iter(cache.kept))]
            cache.kept[key] = _Kept(made, answer.prior_generation, asked, lease_ends)
        return made

    def _without_answer(
        self,
        cache: _Cache,
        key: tuple[str, str | None, int],
        answer: Manifest | Miss,
        kept: _Kept | None,
    ) -> Any | None:
        unreachable = isinstance(answer, Miss) and answer.reason in {
            "provider_timeout",
            "provider_error",
            "provider_disabled",
        }
        if unreachable and kept and self._clock() < kept.lease_ends_s:
            return kept.manifest
        if not unreachable:
            with cache.lock:
                cache.kept.pop(key, None)
        return None

    def _own_cache(self) -> _Cache:
        if self._cache.pid != os.getpid():
            self._cache = _Cache()
        return self._cache


def _forget_superseded(cache: _Cache, key: tuple[str, str | None, int], generation: int) -> None:
    """Drops what older generations answered, for any K and, where they share a prior, any query."""
    prefix, query, _ = key
    old = {one.generation for at, one in cache.kept.items() if at[:2] == (prefix, query)}
    old.discard(generation)
    for at in [at for at, one in cache.kept.items() if at[0] == prefix and one.generation in old]:
        del cache.kept[at]


def skip_list(manifest: _HasBlocks | None, num_logical_blocks: int) -> list[int]:
    """The blocks not to read: what the manifest leaves of 0 to num_logical_blocks - 1.

    Without a manifest nothing is skipped. Blocks beyond the request's own are ignored: a prior may
    count one block more than the cartridge has.
    """
    if manifest is None or num_logical_blocks <= 0:
        return []
    skipped = np.ones(num_logical_blocks, bool)
    blocks = np.asarray(manifest.block_indices, np.int64)
    skipped[blocks[blocks < num_logical_blocks]] = False
    found: list[int] = np.flatnonzero(skipped).tolist()
    return found


def padded_indices(
    manifests: Sequence[_HasBlocks | None], num_logical_blocks: Sequence[int]
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """SGLang's shape: int32 [batch, most] ascending and padded with -1, and int32 [batch] lengths.

    Without a manifest a request reads all its blocks. `torch.from_numpy` makes tensors of both.
    """
    rows = [_row(*pair) for pair in zip(manifests, num_logical_blocks, strict=True)]
    lengths = np.array([len(row) for row in rows], np.int32)
    selected = np.full((len(rows), max(lengths, default=0)), -1, np.int32)
    for row, blocks in zip(selected, rows, strict=True):
        row[: len(blocks)] = blocks
    return selected, lengths


def _row(manifest: _HasBlocks | None, num_logical_blocks: int) -> npt.NDArray[np.int64]:
    if manifest is None:
        return np.arange(num_logical_blocks)
    blocks = np.asarray(manifest.block_indices, np.int64)
    return blocks[blocks < num_logical_blocks]
