"""Where captured KV lies: host memory with a byte cap, or a folder that several workers share."""

from __future__ import annotations

from kvatlas.kvstore.folder import FolderStore
from kvatlas.kvstore.memory import MemoryStore
from kvatlas.kvstore.record import ReadError, Record, Wanted
from kvatlas.kvstore.spec import (
    Spec,
    Store,
    open_store,
    parse_spec,
    remove_owned,
    store_identity,
)

__all__ = [
    "FolderStore",
    "MemoryStore",
    "ReadError",
    "Record",
    "Spec",
    "Store",
    "Wanted",
    "open_store",
    "parse_spec",
    "remove_owned",
    "store_identity",
]
