"""Captured KV in a folder that several workers, on one machine or several, write to and read from.

A donor is a folder, a worker's share of it a safetensors file `<donor>/<shard>.safetensors`. A file
appears whole or not at all (written beside, then renamed) and is never changed. It is read with
plain reads: a mapped file that somebody truncates would end the engine with SIGBUS.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import fcntl
import itertools
import json
import operator
import os
import re
import shutil
import struct
import threading
import time
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from kvatlas.kvstore.record import (
    BLOCKS_MAX,
    Pages,
    ReadError,
    Record,
    TokenIds,
    Wanted,
    check_wanted,
)

FORMAT = "kvatlas-kv-1"
HEADER_BYTES_MAX = 16 * 1024 * 1024
# A file that nobody finished writing for so long belongs to a dead process.
LEFTOVER_AGE_S = 600
# Eviction goes on to below the cap, so that it does not run at every write.
EVICT_TO_RATIO = 0.9
# Of putting a file into a donor's folder that others may remove.
PLACE_TRIES_MAX = 10
# Other processes write too: what lies in the folder is counted anew this often.
RECOUNT_S = 10.0
# And whenever this process has written so much of the cap since.
RECOUNT_RATIO = 0.02

_FULL = (errno.ENOSPC, errno.EDQUOT)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
_TEMPORARY_PREFIX = ".writing-"


class FolderStore:
    """At most about `bytes_max` in all shards, the donors least recently read making room."""

    def __init__(self, folder: str | os.PathLike[str], shard: str, bytes_max: int) -> None:
        self._folder = Path(folder)
        self._shard = _checked_name(shard)
        self._bytes_max = bytes_max
        self._lock = threading.Lock()
        self._counted_s = float("-inf")
        self._bytes = 0
        self._written = 0
        self._temporary_number = itertools.count()
        # Token ids lie there in clear. Who is to share the folder with others makes it before.
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._remove_leftovers()

    def write(self, donor_id: str, record: Record) -> list[str]:
        """Keeps the record, and names the donors that made room. OSError: it could not be written.
        ValueError: larger than the cap."""
        header = _header(record)
        size = len(header) + 4 * len(record.tokens) + record.pages.nbytes
        if size > self._bytes_max:
            raise ValueError(f"{size} bytes, more than the store's {self._bytes_max}")
        with self._lock:
            evicted = self._make_room(size)
            try:
                self._put(donor_id, header, record)
            except OSError as error:
                if error.errno not in _FULL:
                    raise
                # The file system is smaller than the cap: so the same as at the cap.
                evicted += self._make_room_in(size)
                self._put(donor_id, header, record)
            self._bytes += size
            self._written += size
        return evicted

    def _put(self, donor_id: str, header: bytes, record: Record) -> None:
        target = self._file(donor_id)
        number = next(self._temporary_number)
        temporary = self._folder / f"{_TEMPORARY_PREFIX}{self._shard}-{os.getpid()}-{number}"
        try:
            with temporary.open("xb") as file:
                file.write(header)
                file.write(np.ascontiguousarray(record.tokens, "<u4").data)
                file.write(np.ascontiguousarray(record.pages).data)
            for attempt in range(PLACE_TRIES_MAX):
                try:
                    target.parent.mkdir(exist_ok=True)
                    temporary.replace(target)
                    break
                except (FileNotFoundError, FileExistsError):
                    # Another worker removed the donor's folder while it was still empty; one
                    # that goes while mkdir looks what is there counts as a file.
                    if attempt == PLACE_TRIES_MAX - 1:
                        raise
        finally:
            temporary.unlink(missing_ok=True)

    def read(self, donor_id: str, wanted: Wanted) -> Pages:
        """The pages, each checked against the sum it was written with."""
        path = self._file(donor_id)
        try:
            with path.open("rb", buffering=0) as file:
                pages = _read(file.fileno(), wanted)
            # Says that the donor was used; it may have been removed meanwhile.
            with contextlib.suppress(OSError):
                os.utime(path.parent)
        except FileNotFoundError:
            raise ReadError("missing", "no such file") from None
        except OSError as error:
            raise ReadError("unreadable", str(error.strerror)) from error
        return pages

    def remove(self, donor_id: str) -> None:
        """Removes this worker's share; the donor's folder goes with the last share."""
        path = self._file(donor_id)
        path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            path.parent.rmdir()

    def _file(self, donor_id: str) -> Path:
        return self._folder / _checked_name(donor_id) / f"{self._shard}.safetensors"

    def _make_room(self, size: int) -> list[str]:
        now = time.monotonic()
        much = self._written > RECOUNT_RATIO * self._bytes_max
        if much or now - self._counted_s > RECOUNT_S:
            self._bytes = sum(size for _, _, size in self._donors())
            self._counted_s, self._written = now, 0
        if self._bytes + size <= self._bytes_max:
            return []
        return self._evict(size, self._bytes_max)

    def _make_room_in(self, size: int) -> list[str]:
        """In a file system that is full with what it holds now."""
        return self._evict(size, sum(donor_size for _, _, donor_size in self._donors()))

    def _evict(self, size: int, bytes_max: int) -> list[str]:
        """Down to below the cap, the donors least recently used first."""
        with _exclusive(self._folder / ".evicting"):
            return self._evict_alone(min(bytes_max * EVICT_TO_RATIO, bytes_max - size))

    def _evict_alone(self, room_for: float) -> list[str]:
        donors = sorted(self._donors())
        self._bytes = sum(donor_size for _, _, donor_size in donors)
        evicted = []
        for _, donor_id, donor_size in donors:
            if self._bytes <= room_for:
                break
            shutil.rmtree(self._folder / donor_id, ignore_errors=True)
            self._bytes -= donor_size
            evicted.append(donor_id)
        return evicted

    def _donors(self) -> Iterator[tuple[float, str, int]]:
        """When last used, id and size of each donor in the folder."""
        for entry in _entries(self._folder):
            if entry.name.startswith(".") or not entry.is_dir(follow_symlinks=False):
                continue
            with contextlib.suppress(FileNotFoundError):
                used_s = entry.stat().st_mtime
                sizes = [file.stat().st_size for file in _entries(Path(entry.path))]
                yield used_s, entry.name, sum(sizes)

    def _remove_leftovers(self) -> None:
        for entry in _entries(self._folder):
            if entry.name.startswith(_TEMPORARY_PREFIX):
                with contextlib.suppress(FileNotFoundError):
                    if time.time() - entry.stat().st_mtime > LEFTOVER_AGE_S:
                        Path(entry.path).unlink()


def remove_donors(folder: str, prefix: str) -> None:
    """Removes every donor whose id begins so: those of an owner that is no more."""
    for entry in _entries(Path(folder)):
        if entry.name.startswith(prefix) and entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.path, ignore_errors=True)


def _header(record: Record) -> bytes:
    """The safetensors header, with the sums of the tokens and of each page."""
    tokens = np.ascontiguousarray(record.tokens, "<u4")
    pages = np.ascontiguousarray(record.pages)
    sums = b"".join(zlib.crc32(page.data).to_bytes(4, "little") for page in pages)
    split, size = tokens.nbytes, tokens.nbytes + pages.nbytes
    described = {
        "__metadata__": {
            "format": FORMAT,
            "namespace": record.namespace,
            "layout": record.layout,
            "tokens_crc32": zlib.crc32(tokens.data).to_bytes(4, "little").hex(),
            "pages_crc32": sums.hex(),
        },
        "tokens": {"dtype": "U32", "shape": [len(tokens)], "data_offsets": [0, split]},
        "pages": {"dtype": "U8", "shape": list(pages.shape), "data_offsets": [split, size]},
    }
    text = json.dumps(described, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


@dataclasses.dataclass(frozen=True)
class _Header:
    tokens_count: int
    pages_count: int
    page_bytes: int
    namespace: str
    layout: str
    tokens_sum: int
    page_sums: tuple[int, ...]
    # Where the tokens begin in the file; the pages follow them.
    start: int


def _read(file: int, wanted: Wanted) -> Pages:
    header = _read_header(file)
    tokens = _read_tokens(file, header)
    check_wanted(wanted, tokens, header.namespace, header.layout, header.pages_count)
    count = wanted.end - wanted.first
    start = header.start + tokens.nbytes + wanted.first * header.page_bytes
    data = _exactly(file, count * header.page_bytes, start)
    pages = np.frombuffer(data, np.uint8).reshape(count, header.page_bytes)
    for block, page in enumerate(pages, wanted.first):
        if zlib.crc32(page.data) != header.page_sums[block]:
            raise ReadError("corrupt", f"block {block} is not what was written")
    return pages


def _read_header(file: int) -> _Header:
    size = os.fstat(file).st_size
    length = int.from_bytes(_exactly(file, 8, 0), "little")
    if not 2 <= length <= HEADER_BYTES_MAX:
        raise ReadError("corrupt", "the header's length")
    text = _exactly(file, length, 8)
    try:
        described = json.loads(text)
        metadata = described["__metadata__"]
        (tokens_count,) = described["tokens"]["shape"]
        pages_count, page_bytes = described["pages"]["shape"]
        header = _Header(
            tokens_count=operator.index(tokens_count),
            pages_count=operator.index(pages_count),
            page_bytes=operator.index(page_bytes),
            namespace=str(metadata["namespace"]),
            layout=str(metadata["layout"]),
            tokens_sum=_sums(metadata["tokens_crc32"])[0],
            page_sums=_sums(metadata["pages_crc32"]),
            start=8 + length,
        )
        known = metadata["format"] == FORMAT
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise ReadError("corrupt", "the header") from error
    sound = (
        known
        and 1 <= header.pages_count <= BLOCKS_MAX
        and header.page_bytes >= 1
        and header.tokens_count >= 1
        and header.tokens_count % header.pages_count == 0
        and len(header.page_sums) == header.pages_count
    )
    data = 4 * header.tokens_count + header.pages_count * header.page_bytes
    if not sound or size != header.start + data:
        raise ReadError("corrupt", "header and size do not agree")
    return header


def _read_tokens(file: int, header: _Header) -> TokenIds:
    data = _exactly(file, 4 * header.tokens_count, header.start)
    if zlib.crc32(data) != header.tokens_sum:
        raise ReadError("corrupt", "the tokens are not what was written")
    return np.frombuffer(data, "<u4").astype(np.uint32, copy=False)


def _sums(text: str) -> tuple[int, ...]:
    packed = bytes.fromhex(text)
    if len(packed) % 4:
        raise ValueError("a part of a sum")
    return struct.unpack(f"<{len(packed) // 4}I", packed)


def _exactly(file: int, size: int, offset: int) -> bytearray:
    """Reads so many bytes; a file that ends before is corrupt."""
    data = bytearray(size)
    view = memoryview(data)
    done = 0
    while done < size:
        count = os.preadv(file, [view[done:]], offset + done)
        if count == 0:
            raise ReadError("corrupt", "the file ends too early")
        done += count
    return data


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except FileNotFoundError:
        return []


def _checked_name(name: str) -> str:
    """A donor or shard names a file here, and may come from another process."""
    if not _NAME.fullmatch(name):
        raise ReadError("missing", "no name that this store gives")
    return name


@contextlib.contextmanager
def _exclusive(path: Path) -> Iterator[None]:
    """One process at a time."""
    with path.open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
