"""The algorithms: each scores every block of a cartridge, as [layers, KV heads or 1, blocks].

Higher means more needed. The server takes the mean over layers and heads, so that a sum over layers
ranks alike.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn import functional
from transformers import DynamicCache

from kvatlas.bake.cartridge import Cartridge, Progress, no_progress, read

# What the attention of all layers may take for the rows that are looked at at once.
ATTENTION_BYTES_MAX = 256 << 20


def kri_d_kv_sum(
    cartridge: Cartridge,
    probes: Sequence[torch.Tensor],
    progress: Progress = no_progress,
) -> torch.Tensor:
    """How far the hidden states of what follows move when the block is left out, layer by layer.

    The L2 norm of the difference to the hidden states with the full cache, the mean over the
    probes' tokens; [layers, 1, blocks]. Each row of a batch leaves out another block.
    """
    scores = torch.zeros(cartridge.layers, 1, cartridge.blocks)
    with torch.inference_mode():
        for done, probe in enumerate(probes):
            full = read(cartridge, probe, [[]]).hidden
            for blocks in torch.arange(cartridge.blocks).split(cartridge.batch_max()):
                left_out = read(cartridge, probe, [[block] for block in blocks.tolist()]).hidden
                moved = (left_out - full).float().norm(dim=-1).mean(dim=-1)
                scores[:, 0, blocks] += moved.cpu() / len(probes)
                told = done * cartridge.blocks + int(blocks[-1]) + 1
                progress(told, len(probes) * cartridge.blocks)
    return scores


def kri_a(cartridge: Cartridge, progress: Progress = no_progress) -> torch.Tensor:
    """How much attention the block gets while the prefix is prefilled.

    The probability on the block's keys, the mean over the prefix's tokens and over the query heads
    that share a KV head; [layers, KV heads, blocks], a head's blocks sum to 1. Early blocks are
    seen by more tokens, the last by its own alone.
    """
    model, heads = cartridge.model, cartridge.keys[0].shape[1]
    mass = torch.zeros(cartridge.layers, heads, cartridge.blocks)
    query_heads = model.config.get_text_config().num_attention_heads
    row_bytes = 4 * cartridge.layers * query_heads * cartridge.length
    cache = DynamicCache()
    with torch.inference_mode():
        rows = max(1, ATTENTION_BYTES_MAX // row_bytes)
        for start in range(0, cartridge.length, rows):
            chunk = cartridge.tokens[start : start + rows]
            out = model(
                chunk[None].to(model.device),
                past_key_values=cache,
                use_cache=True,
                output_attentions=True,
            )
            for layer, attention in enumerate(out.attentions):
                mass[layer] += _by_block(cartridge, attention[0].float().sum(dim=1)).cpu()
            progress(start + len(chunk), cartridge.length)
    return mass / cartridge.length


def kri_g(
    cartridge: Cartridge, probes: Sequence[torch.Tensor], progress: Progress = no_progress
) -> torch.Tensor:
    """How steeply the loss on what follows depends on the block's mean key.

    The L2 norm of the gradient of the probe's next-token loss; [layers, KV heads, blocks]. To move
    a block's mean key is to move each of its keys as much, so that gradient is the sum over them.
    """
    heads = cartridge.keys[0].shape[1]
    scores = torch.zeros(cartridge.layers, heads, cartridge.blocks)
    for done, probe in enumerate(probes, 1):
        keys = [key.clone().requires_grad_() for key in cartridge.keys]
        values = [value.clone() for value in cartridge.values]
        probed = dataclasses.replace(cartridge, keys=keys, values=values)
        logits = read(probed, probe, [[]]).logits[0].float()
        loss = functional.cross_entropy(logits[:-1], probe[1:].to(logits.device))
        gradients = torch.autograd.grad(loss, keys)
        for layer, gradient in enumerate(gradients):
            for block in range(cartridge.blocks):
                moved = gradient[0, :, cartridge.span(block)].float().sum(dim=1).norm(dim=-1)
                scores[layer, :, block] += moved.cpu() / len(probes)
        progress(done, len(probes))
    return scores


ALGORITHMS: dict[str, Callable[[Cartridge, Sequence[torch.Tensor], Progress], torch.Tensor]] = {
    "kri-d-kv-sum": kri_d_kv_sum,
    "kri-a": lambda cartridge, _probes, progress: kri_a(cartridge, progress),
    "kri-g": kri_g,
}


def schema(cartridge: Cartridge, algorithm: str, scores: torch.Tensor, model_id: str) -> Any:
    """The dictionary that a `.pt` file of a prior holds."""
    layers, heads, blocks = scores.shape
    return {
        "version": 1,
        "block_affinities": scores,
        "prior_type": algorithm,
        "model_id": model_id,
        "block_size": cartridge.block_size,
        "doc_len": cartridge.length,
        "num_blocks": blocks,
        "num_layers": layers,
        "num_kv_heads": heads,
    }


def _by_block(cartridge: Cartridge, by_key: torch.Tensor) -> torch.Tensor:
    """[query heads, keys] to [KV heads, blocks]: sums over keys, means over heads of a group."""
    heads = cartridge.keys[0].shape[1]
    missing = cartridge.blocks * cartridge.block_size - by_key.shape[1]
    blocks = functional.pad(by_key, (0, missing)).view(len(by_key), cartridge.blocks, -1).sum(-1)
    return blocks.view(heads, -1, cartridge.blocks).mean(dim=1)
