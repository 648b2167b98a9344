#!/usr/bin/env python3
"""Writes score.txt, the expected scores of a small table by the formulas of KRI-Q and Quest.

Needs numpy. Keys [layers, heads, blocks, dim] are rounded to f16 first; everything after is f64.
A line is a name and its numbers. Rows are block-major, scores are [layers, heads, blocks].
"""

from pathlib import Path

import numpy as np

LAYERS, QUERY_HEADS, KV_HEADS, DIM, BLOCKS, BLOCK_TOKENS = 2, 6, 2, 18, 5, 4
GROUP = QUERY_HEADS // KV_HEADS

random = np.random.default_rng(7)
query = random.normal(size=(LAYERS, QUERY_HEADS, DIM)).astype(np.float32).astype(np.float64)
tokens = random.normal(size=(LAYERS, KV_HEADS, BLOCKS, BLOCK_TOKENS, DIM))
tokens += random.normal(size=(LAYERS, KV_HEADS, 1, 1, DIM))
as_stored = lambda keys: keys.astype(np.float16).astype(np.float64)
means = as_stored(tokens.mean(3))
smallest, largest = as_stored(tokens.min(3)), as_stored(tokens.max(3))


def unit(vectors):
    return vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12)


def logits(query, keys):
    """[layers, kv_heads, group, blocks]"""
    grouped = query.reshape(LAYERS, KV_HEADS, GROUP, DIM)
    return np.einsum("lhgd,lhnd->lhgn", grouped, keys)


dots = logits(query, means) / np.sqrt(DIM)
cosines = logits(unit(query), unit(means))
grouped = query.reshape(LAYERS, KV_HEADS, GROUP, 1, DIM)
bounds = np.maximum(grouped * smallest[:, :, None], grouped * largest[:, :, None]).sum(-1)
block_major = lambda keys: keys.transpose(2, 0, 1, 3)
lines = {
    "query": query,
    "means": block_major(means),
    "extremes": np.stack([block_major(smallest), block_major(largest)], axis=3),
    "dot_mean": dots.mean(2),
    "dot_max": dots.max(2),
    "cosine_mean": cosines.mean(2),
    "cosine_max": cosines.max(2),
    "quest_mean": bounds.mean(2),
    "quest_max": bounds.max(2),
    "uniform": dots.mean((0, 1, 2)),
}
with Path(__file__).with_suffix(".txt").open("w") as file:
    for name, values in lines.items():
        print(name, *(f"{value:.9g}" for value in values.ravel()), file=file)
