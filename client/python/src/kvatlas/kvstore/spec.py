"""Which store an operator asked for: "memory" or a folder, with an optional ",max=SIZE"."""

from __future__ import annotations

import contextlib
import dataclasses
import re
import uuid
from pathlib import Path
from typing import Protocol

from kvatlas.kvstore import folder
from kvatlas.kvstore.folder import FolderStore
from kvatlas.kvstore.memory import MemoryStore
from kvatlas.kvstore.record import Pages, Record, Wanted

MEMORY_BYTES_DEFAULT = 4 * 1024**3
FOLDER_BYTES_DEFAULT = 64 * 1024**3

_UNITS = {"": 1, "KiB": 1024, "MiB": 1024**2, "GiB": 1024**3, "TiB": 1024**4}
_SIZE = re.compile(r"([0-9]{1,15})(|KiB|MiB|GiB|TiB)")


class Store(Protocol):
    """Keeps one worker's share of donors. Safe to use from several threads."""

    def write(self, donor_id: str, record: Record) -> list[str]:
        """Keeps a record, and names the donors that made room. OSError and ValueError: it is not
        kept."""

    def read(self, donor_id: str, wanted: Wanted) -> Pages:
        """Pages that are what is wanted, not to be written to. ReadError otherwise."""

    def remove(self, donor_id: str) -> None:
        """Forgets a donor; nothing happens when it is not there."""


@dataclasses.dataclass(frozen=True)
class Spec:
    """A store, described."""

    # None: this process's memory.
    folder: str | None
    bytes_max: int

    @property
    def medium(self) -> str:
        """What donors in it are registered as."""
        return "host" if self.folder is None else "disk"


def parse_spec(text: str) -> Spec:
    """ "memory", "memory,max=8GiB", "/dev/shm/kv", "/mnt/kv,max=200GiB". ValueError otherwise."""
    place, given, option = text.partition(",max=")
    size = _SIZE.fullmatch(option)
    if not place or "," in place or (given and not size):
        raise ValueError("a KV store is `memory` or a folder, then perhaps `,max=8GiB`")
    bytes_max = int(size[1]) * _UNITS[size[2]] if size else None
    if bytes_max == 0:
        raise ValueError("a KV store's largest size is at least 1 byte")
    if place == "memory":
        return Spec(None, bytes_max or MEMORY_BYTES_DEFAULT)
    return Spec(str(Path(place).absolute()), bytes_max or FOLDER_BYTES_DEFAULT)


def open_store(spec: Spec, shard: str) -> Store:
    """The store, for one worker's shard."""
    if spec.folder is None:
        return MemoryStore(spec.bytes_max)
    return FolderStore(spec.folder, shard, spec.bytes_max)


def store_identity(spec: Spec, worker_id: str) -> str:
    """The store's name among all stores: whoever sees the same one may read what lies in it.

    A folder carries its name in a file, so that it is the same on every machine that mounts it.
    """
    if spec.folder is None:
        return f"memory:{worker_id}"
    path = Path(spec.folder) / ".store-id"
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        mine = path.with_name(f".store-id-{uuid.uuid4()}")
        mine.write_text(f"folder:{uuid.uuid4()}")
        # Linking fails where somebody was first; then theirs counts.
        with contextlib.suppress(FileExistsError):
            path.hardlink_to(mine)
        mine.unlink()
    return path.read_text()


def remove_owned(spec: Spec, prefix: str) -> None:
    """Removes what a folder holds of an owner's donors; a memory ends with its process."""
    if spec.folder is not None:
        folder.remove_donors(spec.folder, prefix)
