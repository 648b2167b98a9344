#!/usr/bin/env python3
"""Writes summary/*.safetensors: what the cartridges of pt/ amount to as key summaries, by numpy.

Reads the cartridges without torch: the stand-ins know the names that torch's pickles hold.

    pip install numpy && python3 make_summaries.py
"""

import collections
import io
import json
import pathlib
import pickle
import struct
import zipfile

import numpy

HERE = pathlib.Path(__file__).parent


class ParameterList:
    """Torch's, by what its pickle has."""

    def __iter__(self):
        return iter(self._parameters.values())


class Cartridge(pickle.Unpickler):
    def __init__(self, path):
        self.archive = zipfile.ZipFile(path)
        self.stem = next(n for n in self.archive.namelist() if n.endswith("data.pkl"))[:-8]
        super().__init__(io.BytesIO(self.archive.read(self.stem + "data.pkl")))

    def find_class(self, module, name):
        return {
            "OrderedDict": collections.OrderedDict,
            "HalfStorage": "f2",
            "FloatStorage": "f4",
            "BFloat16Storage": "bf2",
            "_rebuild_tensor_v2": self.tensor,
            "ParameterList": ParameterList,
            "set": set,
            "_rebuild_parameter": lambda data, *_: data,
        }[name]

    def persistent_load(self, persistent_id):
        _, kind, key, _, _ = persistent_id
        raw = self.archive.read(self.stem + "data/" + key)
        if kind == "bf2":
            halves = numpy.frombuffer(raw, "<u2").astype("<u4") << 16
            return halves.view("<f4")
        return numpy.frombuffer(raw, "<" + kind)

    def tensor(self, storage, offset, shape, strides, *_):
        strides = [stride * storage.itemsize for stride in strides]
        return numpy.lib.stride_tricks.as_strided(storage[offset:], shape, strides)


def keys(path):
    """[layers, kv_heads, tokens, head_dim] in f64."""
    loaded = Cartridge(path).load()
    if isinstance(loaded, list):
        layers = [pair[0] for pair in loaded]
    else:
        kept = "fixed_keys" if "fixed_keys" in loaded else "frozen_keys"
        parts = zip(loaded[kept], loaded["trainable_keys"])
        layers = [numpy.concatenate(pair, axis=2) for pair in parts]
    return numpy.concatenate(layers).astype(numpy.float64)


def summary(keys, block_size, layout):
    tokens, half = keys.shape[2], keys.shape[3] // 2
    first = numpy.arange(0, tokens, block_size)
    count = numpy.minimum(block_size, tokens - first)[None, None, :, None]
    if layout == "half":
        lengths = numpy.hypot(keys[..., :half], keys[..., half:])
    else:
        lengths = numpy.hypot(keys[..., 0::2], keys[..., 1::2])
    return {
        "key_means": numpy.add.reduceat(keys, first, axis=2) / count,
        "key_min": numpy.minimum.reduceat(keys, first, axis=2),
        "key_max": numpy.maximum.reduceat(keys, first, axis=2),
        "key_magnitudes": numpy.add.reduceat(lengths, first, axis=2) / count,
    }


def write(path, tensors):
    header, data = {}, b""
    for name, values in tensors.items():
        raw = values.astype("<f4").tobytes()
        offsets = [len(data), len(data) + len(raw)]
        header[name] = {"dtype": "F32", "shape": values.shape, "data_offsets": offsets}
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


for cartridge, block_size, layout in [
    ("cart_list", 16, "half"),
    ("cart_list", 24, "interleaved"),
    ("cart_trainable", 16, "interleaved"),
    ("cart_trainable", 5, "half"),
    ("cart_modules", 3, "half"),
    ("cart_modules_protocol4", 4, "interleaved"),
    ("cart_fixed", 3, "half"),
]:
    name = f"{cartridge}_{block_size}_{layout}.safetensors"
    made = summary(keys(HERE / "pt" / f"{cartridge}.pt"), block_size, layout)
    write(HERE / "summary" / name, made)
    print(name, made["key_means"].shape)
