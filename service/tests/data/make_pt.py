#!/usr/bin/env python3
"""Writes pt/py_*.pt: priors as CPython pickles them in protocols 2 to 5, without torch or numpy.

Torch always writes protocol 2 unless told otherwise, and its own files are beside these. The
stand-ins below have the names that the reader knows; only their names reach the file.

    python3 make_pt.py
"""

import collections
import io
import pathlib
import pickle
import struct
import sys
import types
import zipfile


def module(name):
    made = types.ModuleType(name)
    sys.modules[name] = made
    return made


def named(where, name):
    """A class that pickles as `where.name` and is only ever passed by name."""
    made = type(name, (), {"__module__": where.__name__})
    setattr(where, name, made)
    return made


torch, torch_utils = module("torch"), module("torch._utils")
numpy, multiarray = module("numpy"), module("numpy._core.multiarray")
module("numpy._core")
FloatStorage, LongStorage = named(torch, "FloatStorage"), named(torch, "LongStorage")
rebuild, dtype, scalar = (
    named(torch_utils, "_rebuild_tensor_v2"),
    named(numpy, "dtype"),
    named(multiarray, "scalar"),
)


class Call:
    """Pickles as the call of something known by name."""

    def __init__(self, function, *arguments, state=None):
        self.reduced = (function, arguments) if state is None else (function, arguments, state)

    def __reduce_ex__(self, protocol):
        return self.reduced


class Storage:
    def __init__(self, kind, key, elements):
        self.persistent_id = ("storage", kind, key, "cpu", elements)


class Pickler(pickle.Pickler):
    def persistent_id(self, obj):
        return obj.persistent_id if isinstance(obj, Storage) else None


def tensor(kind, key, shape, elements):
    strides, step = [], 1
    for length in reversed(shape):
        strides.insert(0, step)
        step *= length
    storage = Storage(kind, key, elements)
    hooks = collections.OrderedDict()
    return Call(rebuild, storage, 0, shape, tuple(strides), False, hooks)


def prior(protocol):
    i8 = Call(dtype, "i8", False, True, state=(3, "<", None, None, None, -1, -1, 0))
    # Below protocol 5 a bytearray is a call, which the reader refuses.
    raw = bytearray(b"x") if protocol == 5 else None
    shared = [1, 4, 2]
    by_k = collections.defaultdict(list)
    by_k[3] = shared
    by_k[4] = (0, 2, 3, 4)
    by_k[2] = [Call(scalar, i8, struct.pack("<q", n)) for n in (3, 1)]
    by_k[5] = tensor(LongStorage, "1", (5,), 5)
    return {
        "block_affinities": tensor(FloatStorage, "0", (2, 2, 5), 20),
        "kmeans_blocks_perK": by_k,
        "kmeans_blocks": shared,
        "num_blocks": 5,
        "num_layers": 2,
        "num_kv_heads": Call(scalar, i8, struct.pack("<q", 2)),
        "block_size": 128,
        "prior_type": "kri-d",
        "model_id": "Gr\u00f6\u00dfe-3B",
        "seed": -(1 << 100),
        "ratio": 0.25,
        "normalised": True,
        "query_adjust_weights": None,
        "attributes": {"nested": [{"deep": (b"\x00\xff", raw)}]},
        "long": "x" * 300,
    }


def write(path, protocol):
    pickled = io.BytesIO()
    Pickler(pickled, protocol).dump(prior(protocol))
    stamp = (1980, 1, 1, 0, 0, 0)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for name, data in {
            "data.pkl": pickled.getvalue(),
            "byteorder": b"little",
            "data/0": struct.pack("<20f", *(n * 0.5 for n in range(20))),
            "data/1": struct.pack("<5q", 4, 3, 2, 1, 0),
            "version": b"3\n",
        }.items():
            archive.writestr(zipfile.ZipInfo(f"{path.stem}/{name}", stamp), data)


if __name__ == "__main__":
    directory = pathlib.Path(__file__).parent / "pt"
    for protocol in (2, 3, 4, 5):
        write(directory / f"py_protocol{protocol}.pt", protocol)
