"""Checks of kvatlas.bake that need torch: bake_checks.py ANSWER.json

Runs every function that begins with `check_`, in an interpreter with torch and transformers, and
writes what went wrong by name; test_bake.py makes tests of them. The model is small, random, and in
double precision, so that a twin agrees to many digits.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import traceback
from pathlib import Path

import torch
from torch.nn import functional
from transformers import (
    DynamicCache,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
)

from kvatlas.bake.cartridge import UnsupportedModel, no_progress, prefill, read
from kvatlas.bake.scores import ALGORITHMS, kri_a, kri_d_kv_sum, kri_g
from kvatlas.bake.sweep import Line, budgeted, measure, table

VOCABULARY = 50
BLOCK_SIZE = 4
# The last block is not full.
LENGTH = 42
BLOCKS = 11


def check_leaving_out_in_batches_is_leaving_out_one_by_one():
    model, tokens, probes = small()
    expected = torch.stack(
        [
            torch.stack([moved(model, tokens, probe, b) for b in range(BLOCKS)], 1)
            for probe in probes
        ]
    ).mean(0)
    cartridge = prefill(model, tokens, BLOCK_SIZE)
    for batch in (0, 1, 3, BLOCKS):
        scores = kri_d_kv_sum(dataclasses.replace(cartridge, batch=batch), probes)
        assert scores.shape == (2, 1, BLOCKS)
        torch.testing.assert_close(scores[:, 0], expected.float(), rtol=1e-5, atol=1e-6)


def check_attention_mass_is_that_of_the_whole_matrix():
    model, tokens, _ = small()
    scores = kri_a(prefill(model, tokens, BLOCK_SIZE))
    whole = model(tokens[None], output_attentions=True).attentions
    for layer in range(2):
        for head in range(2):
            # Two query heads share a KV head.
            both = whole[layer][0, 2 * head : 2 * head + 2].mean(0)
            for block in range(BLOCKS):
                keys = both[:, block * BLOCK_SIZE : (block + 1) * BLOCK_SIZE]
                expected = keys.sum() / LENGTH
                assert abs(scores[layer, head, block] - expected) < 1e-6
    torch.testing.assert_close(scores.sum(-1), torch.ones(2, 2), rtol=1e-5, atol=1e-5)


def check_gradient_is_that_of_moved_keys():
    model, tokens, (probe, _) = small()
    cartridge = prefill(model, tokens, BLOCK_SIZE)
    scores = kri_g(cartridge, [probe])
    # The model takes its softmax in single precision: a smaller step drowns in that.
    step = 1e-2
    for layer, head, block in ((0, 0, 0), (0, 1, 5), (1, 0, 10), (1, 1, 3)):
        slopes = []
        for channel in range(cartridge.keys[0].shape[-1]):
            losses = []
            for sign in (1, -1):
                keys = [key.clone() for key in cartridge.keys]
                keys[layer][0, head, cartridge.span(block), channel] += sign * step
                reading = read(dataclasses.replace(cartridge, keys=keys), probe, [[]])
                losses.append(functional.cross_entropy(reading.logits[0, :-1], probe[1:]))
            slopes.append((losses[0] - losses[1]) / (2 * step))
        expected = torch.stack(slopes).norm()
        torch.testing.assert_close(
            scores[layer, head, block].double(), expected, rtol=5e-3, atol=1e-6
        )


def check_a_planted_needle_is_found():
    needle_block = 7
    for seed in range(5):
        cartridge, probe = planted(seed, needle_block)
        for name, score in ALGORITHMS.items():
            scores = score(cartridge, [probe], no_progress)
            best = scores.mean((0, 1)).argmax().item()
            assert best == needle_block, f"{name}, seed {seed}: block {best}"


def check_every_block_costs_nothing_and_fewer_cost_something():
    model, tokens, probes = small()
    cartridge = prefill(model, tokens, BLOCK_SIZE)
    lines = [
        Line("a", "top-k", BLOCKS, tuple(range(BLOCKS)), "all_blocks"),
        Line("a", "top-k", 2, (0, 5), ""),
        Line("a", "none", 2, None, "provider_miss"),
    ]
    every, few, none = measure(cartridge, probes, lines)
    assert abs(every.divergence) < 1e-6
    expected = []
    for probe in probes:
        full = after(model, tokens, probe, range(BLOCKS)).logits.log_softmax(-1)
        routed = after(model, tokens, probe, (0, 5)).logits.log_softmax(-1)
        expected.append((full.exp() * (full - routed)).sum(-1).mean())
    assert abs(few.divergence - torch.stack(expected).mean()) < 1e-5
    assert few.divergence > 1e-3
    assert none == lines[2]


def check_policies_take_the_rest_of_the_budget():
    assert budgeted("A1R2", 16) == "A1R2K13"
    assert budgeted("a0r0", 4) == "A0R0K4"
    # Too small a budget is for the server to refuse.
    assert budgeted("A4R4", 4) == "A4R4K0"
    for policy in ("A1R2K13", "top-k", "random-middle:1,2,0"):
        assert budgeted(policy, 8) == policy


def check_the_table_tells_all():
    told = table(
        [
            Line("kri-a", "top-k", 20, tuple(range(20)), "", 0.25),
            Line("-", "recency", 4, (1, 2, 3), "prior_short", 1.5),
            Line("kri-g", "A4R4K0", 4, None, "unsupported_request policy"),
        ],
        40,
    ).splitlines()
    assert told[0].endswith("blocks of 40")
    assert told[1].startswith("20  top-k")
    assert told[1].endswith(" 15 and 4 more")
    assert "0.2500" in told[1]
    assert told[2].endswith("1 2 3 (prior_short)")
    assert told[3].endswith("unsupported_request policy")


def check_a_window_is_refused():
    config = MistralConfig(**shape(), sliding_window=8)
    model = MistralForCausalLM(config).eval().double()
    try:
        prefill(model, torch.arange(LENGTH), BLOCK_SIZE)
    except UnsupportedModel:
        return
    raise AssertionError("a sliding window was taken")


def shape(**changes):
    return {
        "vocab_size": VOCABULARY,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "initializer_range": 0.3,
        "attn_implementation": "eager",
        **changes,
    }


def small(seed=0):
    """A model, a prefix and two probes."""
    torch.manual_seed(seed)
    model = LlamaForCausalLM(LlamaConfig(**shape())).eval().double().requires_grad_(False)
    tokens = torch.randint(VOCABULARY, (LENGTH,))
    return model, tokens, [torch.randint(VOCABULARY, (n,)) for n in (3, 5)]


def after(model, tokens, probe, blocks):
    """The slow twin of `read`: a cache that holds these blocks' rows and nothing else."""
    cache = DynamicCache()
    with torch.no_grad():
        prefix = model(tokens[None], use_cache=True).past_key_values
        rows = [
            r for b in blocks for r in range(b * BLOCK_SIZE, (b + 1) * BLOCK_SIZE) if r < LENGTH
        ]
        for layer, stored in enumerate(prefix.layers):
            cache.update(stored.keys[:, :, rows], stored.values[:, :, rows], layer)
        positions = torch.arange(LENGTH, LENGTH + len(probe))[None]
        return model(
            probe[None], past_key_values=cache, position_ids=positions, output_hidden_states=True
        )


def moved(model, tokens, probe, block):
    """How far the hidden states of each layer move without the block."""
    full = after(model, tokens, probe, range(BLOCKS)).hidden_states[1:]
    others = [b for b in range(BLOCKS) if b != block]
    left_out = after(model, tokens, probe, others).hidden_states[1:]
    return torch.stack(
        [(a - b)[0].norm(dim=-1).mean() for a, b in zip(full, left_out, strict=True)]
    )


def planted(seed, needle_block, blocks=16):
    """A prefix of two words in which one block says what both ask for.

    The first layer makes of the needle the mean query of the two as its key. The rotation is slowed
    down until it hardly turns within the prefix.
    """
    torch.manual_seed(seed)
    width = 64
    config = LlamaConfig(
        **shape(
            hidden_size=width,
            num_hidden_layers=1,
            num_attention_heads=2,
            head_dim=32,
            initializer_range=0.2,
        ),
        rope_parameters={"rope_type": "default", "rope_theta": 1e12},
    )
    model = LlamaForCausalLM(config).eval().double().requires_grad_(False)
    needle, words = VOCABULARY - 1, torch.arange(2)
    attention = model.model.layers[0].self_attn
    embedded = model.model.embed_tokens.weight
    normed = embedded * embedded.pow(2).mean(-1, keepdim=True).rsqrt()
    wanted = (normed[words] @ attention.q_proj.weight.T).mean(0)
    missing = wanted - attention.k_proj.weight @ normed[needle]
    attention.k_proj.weight += missing[:, None] * normed[needle] / normed[needle].pow(2).sum()
    tokens = words[torch.randint(len(words), (blocks * BLOCK_SIZE,))]
    tokens[needle_block * BLOCK_SIZE : (needle_block + 1) * BLOCK_SIZE] = needle
    return prefill(model, tokens, BLOCK_SIZE), words[torch.randint(len(words), (6,))]


def main():
    problems = {}
    for name, check in sorted(globals().items()):
        if name.startswith("check_"):
            try:
                check()
                problems[name] = None
            except Exception:
                problems[name] = traceback.format_exc()
    Path(sys.argv[1]).write_text(json.dumps(problems))


if __name__ == "__main__":
    main()
