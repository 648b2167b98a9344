"""Stores of captured KV: what comes out is what went in, for these tokens, or nothing."""

from __future__ import annotations

import dataclasses
import errno
import multiprocessing
import os
import random
import shutil
from pathlib import Path

import numpy as np
import pytest

from kvatlas.kvstore import (
    FolderStore,
    MemoryStore,
    ReadError,
    Record,
    Store,
    Wanted,
    open_store,
    parse_spec,
    remove_owned,
    store_identity,
)

BLOCK = 4
PAGE_BYTES = 64


def record(seed: int = 0, blocks: int = 6, page_bytes: int = PAGE_BYTES) -> Record:
    chance = np.random.default_rng(seed)
    return Record(
        tokens=chance.integers(0, 1000, blocks * BLOCK).astype(np.uint32),
        pages=chance.integers(0, 256, (blocks, page_bytes)).astype(np.uint8),
        namespace="n",
        layout="l",
    )


def wanted(of: Record, first: int = 0, end: int | None = None, start: int = 0) -> Wanted:
    end = len(of.pages) if end is None else end
    return Wanted(first, end, of.tokens[start : end * BLOCK], start, of.namespace, of.layout)


@pytest.fixture(params=["memory", "folder"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    place = "memory" if request.param == "memory" else str(tmp_path / "kv")
    return open_store(parse_spec(f"{place},max=1MiB"), "0-of-1")


def refused(store: Store, donor_id: str, what: Wanted) -> str:
    with pytest.raises(ReadError) as error:
        store.read(donor_id, what)
    return error.value.kind


def test_what_comes_out_is_what_went_in(store: Store) -> None:
    kept = record()
    assert store.write("d", kept) == []
    assert np.array_equal(store.read("d", wanted(kept)), kept.pages)
    assert np.array_equal(store.read("d", wanted(kept, 2, 5)), kept.pages[2:5])
    # From within a block on, as for KV that moves: the last page is taken whole.
    shifted = Wanted(0, 2, kept.tokens[3:7], 3, kept.namespace, kept.layout)
    assert np.array_equal(store.read("d", shifted), kept.pages[:2])


def test_nothing_comes_out_for_anything_else(store: Store) -> None:
    kept = record()
    store.write("d", kept)
    good = wanted(kept)
    other_tokens = good.tokens.copy()
    other_tokens[-1] += 1
    assert refused(store, "d", dataclasses.replace(good, tokens=other_tokens)) == "mismatch"
    assert refused(store, "d", dataclasses.replace(good, namespace="m")) == "mismatch"
    assert refused(store, "d", dataclasses.replace(good, layout="m")) == "mismatch"
    assert refused(store, "d", dataclasses.replace(good, end=7)) == "mismatch"
    assert refused(store, "d", dataclasses.replace(good, first=6)) == "mismatch"
    assert refused(store, "d", dataclasses.replace(good, donor_start=-1)) == "mismatch"
    # Pages whose tokens were not compared.
    assert refused(store, "d", dataclasses.replace(good, tokens=good.tokens[:8])) == "mismatch"
    assert refused(store, "e", good) == "missing"
    store.remove("d")
    store.remove("d")
    assert refused(store, "d", good) == "missing"


def test_writing_again_replaces(store: Store) -> None:
    store.write("d", record(1))
    store.write("d", record(2))
    assert refused(store, "d", wanted(record(1))) == "mismatch"
    assert np.array_equal(store.read("d", wanted(record(2))), record(2).pages)


@pytest.mark.parametrize("kind", ["memory", "folder"])
def test_the_least_recently_read_makes_room(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = record().pages.nbytes
    store: Store
    if kind == "memory":
        store = MemoryStore(3 * size)
    else:
        monkeypatch.setattr("kvatlas.kvstore.folder.EVICT_TO_RATIO", 1.0)
        whole = _file_bytes(tmp_path / "probe", record())
        store = FolderStore(tmp_path / "kv", "0-of-1", 3 * whole)
    for number in range(3):
        assert store.write(f"d{number}", record(number)) == []
        _age(tmp_path / "kv" / f"d{number}", 100 - number)
    store.read("d0", wanted(record(0)))
    assert store.write("d3", record(3)) == ["d1"]
    assert refused(store, "d1", wanted(record(1))) == "missing"
    store.read("d0", wanted(record(0)))


def test_a_full_file_system_is_like_a_full_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = _file_bytes(tmp_path / "probe", record())
    store = FolderStore(tmp_path / "kv", "s", 1000 * whole)
    replace = Path.replace

    def where_four_fit(self: Path, target: Path) -> Path:
        if len(list((tmp_path / "kv").glob("*/*.safetensors"))) == 4:
            raise OSError(errno.ENOSPC, "no space left")
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", where_four_fit)
    for number in range(4):
        assert store.write(f"d{number}", record(number)) == []
        _age(tmp_path / "kv" / f"d{number}", 100 - number)
    assert store.write("d4", record(4)) == ["d0"]
    store.read("d4", wanted(record(4)))
    monkeypatch.setattr(Path, "replace", _always_full)
    with pytest.raises(OSError, match="no space left"):
        store.write("d5", record(5))


def _always_full(self: Path, target: Path) -> Path:
    raise OSError(errno.ENOSPC, "no space left")


def test_nobody_else_can_read_what_is_kept(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        FolderStore(tmp_path / "kv", "s", 10**6)
        (tmp_path / "shared").mkdir(mode=0o775)
        FolderStore(tmp_path / "shared", "s", 10**6)
    finally:
        os.umask(before)
    modes = [(tmp_path / name).stat().st_mode & 0o777 for name in ("kv", "shared")]
    assert modes == [0o700, 0o755]


def test_a_header_nested_too_deep_is_corrupt(tmp_path: Path) -> None:
    store = FolderStore(tmp_path, "s", 10**6)
    store.write("d", record())
    text = b'{"a":' * 100_000
    (tmp_path / "d" / "s.safetensors").write_bytes(len(text).to_bytes(8, "little") + text)
    assert refused(store, "d", wanted(record())) == "corrupt"


def test_a_record_larger_than_the_store_is_refused(tmp_path: Path) -> None:
    large = record(blocks=20)
    for store in (MemoryStore(1000), FolderStore(tmp_path, "s", 1000)):
        with pytest.raises(ValueError, match="more than the store's 1000"):
            store.write("d", large)
    assert not list(tmp_path.rglob("*.safetensors"))


def test_every_flipped_bit_is_noticed(tmp_path: Path) -> None:
    store = FolderStore(tmp_path, "s", 10**6)
    kept = record(blocks=2, page_bytes=16)
    store.write("d", kept)
    path = tmp_path / "d" / "s.safetensors"
    whole = path.read_bytes()
    chance = random.Random(3)
    body = range(len(whole) - 8 * BLOCK - 32, len(whole))
    places = [*body, *chance.sample(range(len(whole)), 300)]
    for place in places:
        flipped = bytearray(whole)
        flipped[place] ^= 1 << chance.randrange(8)
        path.write_bytes(flipped)
        kind, pages = "", kept.pages
        try:
            pages = store.read("d", wanted(kept))
        except ReadError as error:
            kind = error.kind
        assert np.array_equal(pages, kept.pages)
        # A bit that nobody reads may only be in the header.
        assert kind in ("corrupt", "mismatch") or (not kind and place < len(whole) - len(body))


def test_every_shorter_file_is_noticed(tmp_path: Path) -> None:
    store = FolderStore(tmp_path, "s", 10**6)
    kept = record(blocks=2, page_bytes=16)
    store.write("d", kept)
    path = tmp_path / "d" / "s.safetensors"
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        assert refused(store, "d", wanted(kept)) == "corrupt"
    path.write_bytes(whole + b"\0")
    assert refused(store, "d", wanted(kept)) == "corrupt"


def test_names_from_elsewhere_stay_in_the_folder(tmp_path: Path) -> None:
    store = FolderStore(tmp_path / "kv", "s", 10**6)
    (tmp_path / "outside").mkdir()
    for name in ("../outside", "a/b", "", ".", "..", "a" * 300, "x\0"):
        assert refused(store, name, wanted(record())) == "missing"
        with pytest.raises(ReadError):
            store.write(name, record())
        with pytest.raises(ReadError):
            store.remove(name)


def test_any_reader_of_safetensors_reads_the_file(tmp_path: Path) -> None:
    numpy_format = pytest.importorskip("safetensors.numpy")
    kept = record()
    FolderStore(tmp_path, "s", 10**6).write("d", kept)
    read = numpy_format.load_file(tmp_path / "d" / "s.safetensors")
    assert np.array_equal(read["pages"], kept.pages)
    assert np.array_equal(read["tokens"], kept.tokens)


def _write_and_read(folder: str, shard: int, failures: multiprocessing.Queue[str]) -> None:
    store = FolderStore(folder, f"{shard}-of-4", 40 * record().pages.nbytes)
    for round_number in range(60):
        number = round_number % 12
        try:
            store.write(f"d{number}", record(number))
            pages = store.read(f"d{number}", wanted(record(number)))
            if not np.array_equal(pages, record(number).pages):
                failures.put(f"wrong pages of d{number}")
        except ReadError as error:
            # Another worker has made room meanwhile.
            if error.kind != "missing":
                failures.put(str(error))
        except Exception as error:
            failures.put(repr(error))


def test_several_workers_share_a_folder(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    failures: multiprocessing.Queue[str] = context.Queue()
    workers = [
        context.Process(target=_write_and_read, args=(str(tmp_path), shard, failures))
        for shard in range(4)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0
    assert failures.empty(), failures.get()
    assert not list(tmp_path.glob(".writing-*"))


def test_workers_that_know_nothing_of_each_other_keep_to_the_cap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # They do not see by the clock what others write.
    monkeypatch.setattr("kvatlas.kvstore.folder.RECOUNT_S", 3600.0)
    whole = _file_bytes(tmp_path / "probe", record())
    stores = [FolderStore(tmp_path / "kv", "s", 50 * whole) for _ in range(4)]
    most = 0
    for number in range(200):
        stores[number % 4].write(f"d{number}", record(number))
        files = (tmp_path / "kv").glob("*/*.safetensors")
        most = max(most, sum(file.stat().st_size for file in files))
    assert 45 * whole <= most <= 56 * whole


def test_leftovers_of_dead_writers_go(tmp_path: Path) -> None:
    old, new = tmp_path / ".writing-old", tmp_path / ".writing-new"
    for path in (old, new):
        path.write_bytes(b"half")
    _age(old, 3600)
    FolderStore(tmp_path, "s", 10**6)
    assert not old.exists()
    assert new.exists()


def test_an_owner_that_is_no_more_leaves_nothing(tmp_path: Path) -> None:
    spec = parse_spec(str(tmp_path))
    store = open_store(spec, "s")
    for name in ("a.0.1.1", "a.0.1.2", "ab.0.1.1"):
        store.write(name, record())
    remove_owned(spec, "a.0.")
    assert sorted(path.name for path in tmp_path.glob("*")) == ["ab.0.1.1"]


def test_specs() -> None:
    assert parse_spec("memory").folder is None
    assert parse_spec("memory,max=2GiB").bytes_max == 2 * 1024**3
    assert parse_spec("/x/y,max=10MiB").folder == "/x/y"
    assert parse_spec("/x/y").medium == "disk"
    assert parse_spec("memory").medium == "host"
    for wrong in ("", ",max=1", "memory,max=", "memory,max=0", "memory,max=1GB", "/x,min=1", "a,b"):
        with pytest.raises(ValueError, match="KV store"):
            parse_spec(wrong)


def test_a_folder_has_one_name_for_everybody(tmp_path: Path) -> None:
    spec = parse_spec(str(tmp_path / "kv"))
    name = store_identity(spec, "worker-0")
    assert store_identity(spec, "worker-1") == name
    assert store_identity(parse_spec(str(tmp_path / "other")), "worker-0") != name
    shutil.copytree(tmp_path / "kv", tmp_path / "mounted")
    assert store_identity(parse_spec(str(tmp_path / "mounted")), "worker-2") == name
    memory = parse_spec("memory")
    assert store_identity(memory, "worker-0") != store_identity(memory, "worker-1")


def _age(path: Path, seconds: float) -> None:
    if path.exists():
        then = path.stat().st_mtime - seconds
        os.utime(path, (then, then))


def _file_bytes(folder: Path, of: Record) -> int:
    FolderStore(folder, "s", 10**6).write("d", of)
    return (folder / "d" / "s.safetensors").stat().st_size
