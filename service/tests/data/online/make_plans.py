#!/usr/bin/env python3
"""Writes plans.json: what blocks must score, computed token by token from the definitions.

Nothing is folded or summarised here as the service does it: kri-q is the mean of the block's
attention logits, Quest's bound is taken channel by channel, and kri-t is the paper's formula
(arXiv 2604.04921, equations 6 to 13) for each token and each offset, on keys before RoPE.

    python3 make_plans.py        (numpy is all it needs)
"""

import json
import pathlib

import numpy as np

LAYER_IDS, KV_HEADS, GROUP, HEAD_DIM = [2, 5, 9], 2, 3, 8
BLOCK_SIZE, TOKENS = 4, 22
OFFSETS = 2.0 ** np.arange(17)
BANDS = HEAD_DIM // 2


def f32(array):
    return np.asarray(array, np.float32).astype(np.float64)


def bands(x, layout):
    """Pairs of channels as complex numbers."""
    if layout == "half":
        return x[..., :BANDS] + 1j * x[..., BANDS:]
    return x[..., ::2] + 1j * x[..., 1::2]


def channels(z, layout):
    if layout == "half":
        return np.concatenate([z.real, z.imag], -1)
    return np.stack([z.real, z.imag], -1).reshape(*z.shape[:-1], HEAD_DIM)


def blocks_of(array):
    """The blocks of an array over tokens, `[layers, heads, tokens, ...]`; the last is short."""
    return [array[:, :, at : at + BLOCK_SIZE] for at in range(0, TOKENS, BLOCK_SIZE)]


def over_blocks(array, function):
    return np.stack([function(block) for block in blocks_of(array)], 2)


def kri_q(query, keys, similarity):
    """`[layers, kv_heads, group, blocks]`."""
    query = query.reshape(len(query), KV_HEADS, -1, HEAD_DIM)
    if similarity == "dot":
        logits = np.einsum("lhgd,lhtd->lhtg", query, keys) / np.sqrt(HEAD_DIM)
        return np.moveaxis(over_blocks(logits, lambda block: block.mean(2)), 3, 2)
    means = over_blocks(keys, lambda block: block.mean(2))
    dots = np.einsum("lhgd,lhnd->lhgn", query, means)
    lengths = np.linalg.norm(query, axis=-1)[..., None] * np.linalg.norm(means, axis=-1)[:, :, None]
    return dots / lengths


def quest(query, keys):
    query = query.reshape(len(query), KV_HEADS, -1, 1, HEAD_DIM)
    smallest = over_blocks(keys, lambda block: block.min(2))[:, :, None]
    largest = over_blocks(keys, lambda block: block.max(2))[:, :, None]
    return np.maximum(query * smallest, query * largest).sum(-1)


def kri_t(calibration, world, keys_before):
    """`[layers, kv_heads, group, blocks]`: z-scores of each query head."""
    mean, absolute = calibration["mean"], calibration["absolute"]
    frequencies, position = world["inv_freq"], world["position"]
    scores = np.zeros((len(mean), KV_HEADS, GROUP, TOKENS))
    for layer, head, member in np.ndindex(len(mean), KV_HEADS, GROUP):
        m = mean[layer, head * GROUP + member]
        a = absolute[layer, head * GROUP + member]
        for token in range(TOKENS):
            k = bands(keys_before[layer, head, token], world["layout"])
            phase = np.angle(m) - np.angle(k)
            ahead = position + OFFSETS[:, None] - token
            waves = np.abs(m) * np.abs(k) * np.cos(frequencies * ahead + phase)
            steady = (a - np.abs(m)) * np.abs(k)
            scores[layer, head, member, token] = (waves.sum(1) + steady.sum()).mean()
    scores *= world["attention_scaling"] ** 2
    pooled = over_blocks(np.moveaxis(scores, 3, 2), lambda block: block.mean(2))
    pooled = np.moveaxis(pooled, 3, 2)
    deviation = np.maximum(pooled.std(-1, keepdims=True), 1e-6)
    return (pooled - pooled.mean(-1, keepdims=True)) / deviation


def flat(array):
    """Numbers in the order that they lie in. Nine digits tell one f32 from the next."""
    return [float(f"{number:.9g}") for number in np.asarray(array).ravel()]


def block_major(array):
    """`[layers, heads, blocks, ...]` to `[blocks, layers, heads, ...]`."""
    return flat(np.moveaxis(array, 2, 0))


def case(name, scores, aggregate, layers):
    taken = scores.mean(2) if aggregate == "mean" else scores.max(2)
    return {
        **name,
        "aggregate": aggregate,
        "layer_ids": [LAYER_IDS[layer] for layer in layers],
        "per_head": flat(taken),
        "pooled": flat(taken.mean((0, 1))),
    }


def world(seed, layout, attention_scaling, position):
    draw = np.random.default_rng(seed)
    layers, heads = len(LAYER_IDS), KV_HEADS * GROUP
    inv_freq = f32(10_000.0 ** (-np.arange(BANDS) / BANDS))
    made = {
        "layout": layout,
        "attention_scaling": float(np.float32(attention_scaling)),
        "position": position,
        "inv_freq": inv_freq,
    }
    shape = (layers, KV_HEADS, TOKENS, HEAD_DIM)
    before = draw.normal(size=shape) + draw.normal(size=(layers, KV_HEADS, 1, HEAD_DIM))
    turns = np.exp(1j * np.arange(TOKENS)[:, None] * inv_freq)
    keys = made["attention_scaling"] * channels(bands(before, layout) * turns, layout)
    query = f32(draw.normal(size=(layers, heads, HEAD_DIM)))
    means = query.reshape(layers, KV_HEADS, GROUP, HEAD_DIM).mean(2)
    samples = draw.normal(size=(layers, heads, 1, HEAD_DIM)) + 0.7 * draw.normal(
        size=(layers, heads, 50, HEAD_DIM)
    )
    samples = bands(samples, layout)
    mean, absolute = samples.mean(2), f32(np.abs(samples).mean(2))
    mean = f32(mean.real) + 1j * f32(mean.imag)
    cases = []
    for picked in ([0, 1, 2], [0, 2], [1]):
        q, k = query[picked], keys[picked]
        for aggregate in ("mean", "max"):
            for similarity in ("dot", "cosine"):
                name = {"algorithm": "kri-q", "similarity": similarity, "vectors": "all"}
                cases.append(case(name, kri_q(q, k, similarity), aggregate, picked))
            name = {"algorithm": "kri-q-quest", "vectors": "all"}
            cases.append(case(name, quest(q, k), aggregate, picked))
        for similarity in ("dot", "cosine"):
            name = {"algorithm": "kri-q", "similarity": similarity, "vectors": "group_means"}
            cases.append(case(name, kri_q(means[picked], k, similarity), "mean", picked))
        name = {"algorithm": "kri-q-quest", "vectors": "group_means"}
        cases.append(case(name, quest(means[picked], k), "mean", picked))
        calibration = {"mean": mean[picked], "absolute": absolute[picked]}
        scores = kri_t(calibration, made, before[picked])
        cases.append(case({"algorithm": "kri-t"}, scores, "max", picked))
    extremes = [over_blocks(keys, lambda block: block.min(2))]
    extremes.append(over_blocks(keys, lambda block: block.max(2)))
    magnitudes = np.abs(bands(keys, layout))
    return {
        **made,
        "inv_freq": flat(inv_freq),
        "layer_ids": LAYER_IDS,
        "kv_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "block_size": BLOCK_SIZE,
        "means": block_major(f32(over_blocks(keys, lambda block: block.mean(2)))),
        "extremes": block_major(f32(np.stack(extremes, 3))),
        "magnitudes": block_major(f32(over_blocks(magnitudes, lambda block: block.mean(2)))),
        "query": flat(query),
        "group_means": flat(f32(means)),
        "mean_real": flat(mean.real),
        "mean_imaginary": flat(mean.imag),
        "mean_absolute": flat(absolute),
        "cases": cases,
    }


if __name__ == "__main__":
    worlds = [world(1, "half", 1.0, 29), world(2, "interleaved", 1.25, 131_072)]
    path = pathlib.Path(__file__).parent / "plans.json"
    path.write_text(json.dumps({"worlds": worlds}) + "\n")
