"""What a store keeps of one donor: its tokens, and their KV block by block.

The tokens lie beside the KV so that whoever reads it compares them with its own: KV is never handed
out for other tokens than those it was computed from, whatever happened to the service, the folder
or the file between the two.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt

# A donor of a million tokens in blocks of 16.
BLOCKS_MAX = 65536

# [blocks, bytes of one block over all layers of one worker]
Pages = npt.NDArray[np.uint8]
TokenIds = npt.NDArray[np.uint32]


@dataclasses.dataclass(frozen=True)
class Record:
    """One worker's share of a donor."""

    # A whole number for each page.
    tokens: TokenIds = dataclasses.field(repr=False)
    pages: Pages
    # Digest of the namespace that the KV was computed in.
    namespace: str
    # Digest of the worker's layers: names, shapes, types. Pages fit only where it is equal.
    layout: str

    def __post_init__(self) -> None:
        if self.pages.ndim != 2 or not 1 <= len(self.pages) <= BLOCKS_MAX:
            raise ValueError(f"pages must be [1 to {BLOCKS_MAX} blocks, bytes]")
        if len(self.tokens) == 0 or len(self.tokens) % len(self.pages):
            raise ValueError("the tokens must fill the pages")


@dataclasses.dataclass(frozen=True)
class Wanted:
    """Pages `first` to `end` (exclusive) of a donor, and what must be true of it."""

    first: int
    end: int
    # The donor's tokens from `donor_start` on.
    tokens: TokenIds = dataclasses.field(repr=False)
    donor_start: int
    namespace: str
    layout: str


class ReadError(Exception):
    """Why pages cannot be had. `kind`: "missing" (not there, or no longer), "unreadable" (perhaps
    another time), "corrupt" (bytes are not those that were written) or "mismatch" (of other tokens,
    another namespace or other layers)."""

    def __init__(self, kind: str, detail: str) -> None:
        super().__init__(f"{kind}: {detail}")
        self.kind = kind
        self.detail = detail

    @property
    def for_good(self) -> bool:
        """Whether nobody will be able to read it."""
        return self.kind in ("missing", "corrupt")


def check_wanted(wanted: Wanted, tokens: TokenIds, namespace: str, layout: str, pages: int) -> None:
    """ReadError where a record is not what is wanted."""
    if namespace != wanted.namespace:
        raise ReadError("mismatch", "KV of another namespace")
    if layout != wanted.layout:
        raise ReadError("mismatch", "KV of other layers")
    if not 0 <= wanted.first < wanted.end <= pages or wanted.donor_start < 0:
        raise ReadError("mismatch", "fewer blocks than wanted")
    block_size = len(tokens) // pages
    stop = wanted.donor_start + len(wanted.tokens)
    if stop > len(tokens) or wanted.end * block_size > stop + block_size - 1:
        raise ReadError("mismatch", "fewer tokens than wanted")
    if not np.array_equal(tokens[wanted.donor_start : stop], wanted.tokens):
        raise ReadError("mismatch", "KV of other tokens")
