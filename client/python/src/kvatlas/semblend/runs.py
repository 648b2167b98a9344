"""Says, without false noes, whether a run of tokens can be in any prompt seen so far.

Of every prompt one window in `WINDOW_TOKENS` is remembered, by a 64-bit hash. A run that a prompt
holds covers one of its remembered windows whole once it is `RUN_TOKENS_MIN` long, wherever it
begins; so a run none of whose windows is remembered is in no prompt. A collision only turns a no
into a maybe.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

WINDOW_TOKENS = 64
# The least that must cover a whole window, wherever it begins.
RUN_TOKENS_MIN = 2 * WINDOW_TOKENS - 1
# Some 90 bytes each, over all namespaces; a million windows are 64 million tokens of prompts.
WINDOWS_MAX = 1_000_000

Tokens = Sequence[int] | npt.NDArray[Any]
Hashes = npt.NDArray[np.uint64]

_MULTIPLIER = 0x9E3779B97F4A7C15
_POWERS: Hashes = np.array(
    [pow(_MULTIPLIER, WINDOW_TOKENS - 1 - i, 1 << 64) for i in range(WINDOW_TOKENS)], np.uint64
)


class SeenRuns:
    """The remembered windows of prompts, apart by namespace."""

    def __init__(self, windows_max: int = WINDOWS_MAX) -> None:
        self._windows_max = windows_max
        self._windows: set[int] = set()
        # Once not every window is remembered, nothing can be ruled out any more.
        self._complete = True
        self._lock = threading.Lock()

    def add(self, namespace: str, tokens: Tokens) -> None:
        """Remembers a prompt."""
        array = np.asarray(tokens, np.uint64)
        whole = len(array) // WINDOW_TOKENS * WINDOW_TOKENS
        hashes = (array[:whole].reshape(-1, WINDOW_TOKENS) @ _POWERS) ^ _salt(namespace)
        with self._lock:
            if len(self._windows) + len(hashes) > self._windows_max:
                self._complete = False
                self._windows.clear()
            if self._complete:
                self._windows.update(hashes.tolist())

    def can_hold(self, namespace: str, run: Tokens) -> bool | None:
        """False: no prompt holds the run. True: one may. None: it cannot be told."""
        if len(run) < RUN_TOKENS_MIN:
            return None
        hashes = _every_window(np.asarray(run, np.uint64)) ^ _salt(namespace)
        with self._lock:
            return not self._windows.isdisjoint(hashes.tolist()) if self._complete else None


def _salt(namespace: str) -> np.uint64:
    digest = hashlib.blake2b(namespace.encode(), digest_size=8).digest()
    salt: np.uint64 = np.frombuffer(digest, "<u8")[0]
    return salt


def _every_window(tokens: Hashes) -> Hashes:
    """The hash of the window that begins at each position."""
    count = len(tokens) - WINDOW_TOKENS + 1
    hashes: Hashes = np.zeros(count, np.uint64)
    for offset, power in enumerate(_POWERS):
        hashes += tokens[offset : offset + count] * power
    return hashes
