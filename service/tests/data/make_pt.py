#!/usr/bin/env python3
"""Writes pt/py_*.pt: priors as CPython pickles them in protocols 2 to 5, without torch or numpy.

Torch always writes protocol 2 unless told otherwise, and its own files are beside these. The
stand-ins below have the names that the reader knows; only their names reach the file. The same
priors go to the fuzzer's corpus as legacy streams, which have no checksum to stop a mutation, with
a few seeds made by hand.

    python3 make_pt.py
"""

import collections
import io
import json
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
ParameterList = named(module("torch.nn.modules.container"), "ParameterList")
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


def pickled(obj, protocol):
    out = io.BytesIO()
    Pickler(out, protocol).dump(obj)
    return out.getvalue()


STORAGES = {
    "0": struct.pack("<20f", *(n * 0.5 for n in range(20))),
    "1": struct.pack("<5q", 4, 3, 2, 1, 0),
}


def archive(path, pickle_bytes, storages):
    stamp = (1980, 1, 1, 0, 0, 0)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as made:
        for name, data in {
            "data.pkl": pickle_bytes,
            "byteorder": b"little",
            **{f"data/{key}": data for key, data in storages.items()},
            "version": b"3\n",
        }.items():
            made.writestr(zipfile.ZipInfo(f"{path.stem}/{name}", stamp), data)


def legacy(path, pickle_bytes, storages):
    """`storages`: bytes and their number of elements by key."""
    system = {"protocol_version": 1001, "little_endian": True}
    parts = [pickled(obj, 2) for obj in (0x1950A86A20F9469CFC6C, 1001, system)]
    parts += [pickle_bytes, pickled(list(storages), 2)]
    for data, elements in storages.values():
        parts += [struct.pack("<q", elements), data]
    path.write_bytes(b"".join(parts))


def safetensors(path):
    header = {
        "__metadata__": {"num_blocks": "6", "prior_type": "kri-g", "model_id": "m"},
        "block_affinities": {"dtype": "F16", "shape": [1, 2, 6], "data_offsets": [0, 24]},
        "kmeans_blocks_perK.2": {"dtype": "I16", "shape": [2], "data_offsets": [24, 28]},
        "kmeans_blocks": {"dtype": "U8", "shape": [3], "data_offsets": [28, 31]},
    }
    text = json.dumps(header).encode()
    data = struct.pack("<12e2h3B", *range(12), 3, 1, 5, 0, 1)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def bomb(path):
    """Lists nested 60 deep, each holding the one before it ten times."""
    lists = [[]]
    for _ in range(60):
        lists.append([lists[-1]] * 10)
    legacy(path, pickled({"bomb": lists[-1], "kmeans_blocks": [2, 1]}, 2), {})


def views(path):
    """One storage seen permuted, expanded, with an offset and without dimensions."""
    storage = Storage(FloatStorage, "0", 20)
    hooks = collections.OrderedDict()
    seen = [(0, (2, 2, 5), (1, 2, 4)), (3, (2, 2, 4), (0, 0, 1)), (19, (), ())]
    made = [Call(rebuild, storage, *view, False, hooks) for view in seen]
    prior = {"block_affinities": made[0], "a": made[1], "num_blocks": 5, "b": {"c": made[2]}}
    legacy(path, pickled(prior, 2), {"0": (STORAGES["0"], 20)})


def parameter_lists(path):
    """A cartridge of two layers, as torch's module writes its state."""
    made = {}
    for name in ("trainable_keys", "frozen_keys"):
        made[name] = ParameterList()
        parameters = {str(layer): tensor(FloatStorage, "0", (1, 2, 5, 2), 20) for layer in (0, 1)}
        state = {"training": True, "_parameters": parameters, "_buffers": {}, "_hooks": set()}
        made[name].__dict__.update(state)
    legacy(path, pickled(made, 2), {"0": (STORAGES["0"], 20)})


if __name__ == "__main__":
    directory = pathlib.Path(__file__).parent
    corpus = directory.parent.parent / "fuzz" / "corpus" / "import_prior"
    counted = {key: (data, n) for (key, data), n in zip(STORAGES.items(), (20, 5))}
    for protocol in (2, 3, 4, 5):
        made = pickled(prior(protocol), protocol)
        archive(directory / "pt" / f"py_protocol{protocol}.pt", made, STORAGES)
        legacy(corpus / f"legacy_protocol{protocol}", made, counted)
    safetensors(corpus / "safetensors")
    bomb(corpus / "bomb")
    views(corpus / "views")
    parameter_lists(corpus / "parameter_lists")
