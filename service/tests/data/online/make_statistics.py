#!/usr/bin/env python3
"""Writes files of calibration statistics as TriAttention's calibration writes them, by torch.

The forms are those of github.com/WeianMao/triattention: `scripts/calibrate.py` saves a dict of
`metadata` and `stats`, the latter by `layer<l>_head<h>`; a later loader takes `layer_stats` too.
A calibration on a GPU copies each array to a storage of its own; one on the CPU leaves the real
and the imaginary parts as two strided views of one storage. expect.json says what is in them.

    python3 make_statistics.py        (needs torch)
"""

import json
import pathlib

import torch

HERE = pathlib.Path(__file__).parent
LAYERS, HEADS, HEAD_DIM = 3, 4, 8
BANDS = HEAD_DIM // 2


def sampled(generator):
    """Complex means and mean lengths of random queries, `[layers, heads, bands]`."""
    shape = (LAYERS, HEADS, 40, HEAD_DIM)
    q = torch.randn(shape, generator=generator) + torch.randn(LAYERS, HEADS, 1, HEAD_DIM)
    pairs = torch.complex(q[..., :BANDS].contiguous(), q[..., BANDS:].contiguous())
    return pairs.mean(dim=2), pairs.abs().mean(dim=2)


def metadata(heads):
    return {
        "num_traces": 1,
        "head_dim": HEAD_DIM,
        "dtype": "bfloat16",
        "use_chat_template": False,
        "system_prompt": "",
        "attn_implementation": "flash_attention_2",
        "rope_style": "half",
        "rope_type": "llama3",
        "sampled_heads": [[layer, head] for layer, head in heads],
    }


def by_head(mean, absolute, heads, on_gpu):
    stats = {}
    for layer, head in heads:
        of_head = mean[layer, head].clone()
        own = (lambda array: array.contiguous().clone()) if on_gpu else (lambda array: array)
        stats[f"layer{layer:02d}_head{head:02d}"] = {
            "q_mean_real": own(of_head.real).cpu(),
            "q_mean_imag": own(of_head.imag).cpu(),
            "q_abs_mean": absolute[layer, head].clone().cpu(),
        }
    return {"metadata": metadata(heads), "stats": stats}


def by_layer(mean, absolute):
    layers = {}
    for layer in range(LAYERS):
        layers[layer] = {
            "q_mean_complex": torch.view_as_real(mean[layer]).clone(),
            "freq_scale_sq": torch.ones(HEADS, BANDS),
        }
        if layer == 1:
            layers[layer]["extra_coef"] = absolute[layer] - mean[layer].abs()
        else:
            layers[layer]["q_abs_mean"] = absolute[layer].clone()
    about = {
        "num_attention_heads": HEADS,
        "num_kv_heads": HEADS,
        "head_dim": HEAD_DIM,
        "num_layers": LAYERS,
        "rope_theta": 500000.0,
        "rope_style": "half",
    }
    return {"metadata": about, "layer_stats": layers}


def flat(array):
    return [float(f"{number:.9g}") for number in array.reshape(-1).tolist()]


if __name__ == "__main__":
    torch.manual_seed(7)
    mean, absolute = sampled(torch.Generator().manual_seed(7))
    every = [(layer, head) for layer in range(LAYERS) for head in range(HEADS)]
    some = [(layer, head) for layer, head in every if layer != 1 or head not in (1, 2)]
    torch.save(by_head(mean, absolute, every, on_gpu=True), HERE / "stats_gpu.pt")
    torch.save(by_head(mean, absolute, every, on_gpu=False), HERE / "stats_cpu.pt")
    torch.save(by_head(mean, absolute, some, on_gpu=True), HERE / "stats_some_heads.pt")
    torch.save(by_layer(mean, absolute), HERE / "layer_stats.pt")
    expect = {
        "heads": HEADS,
        "head_dim": HEAD_DIM,
        "layer_ids": list(range(LAYERS)),
        "mean_real": flat(mean.real),
        "mean_imaginary": flat(mean.imag),
        "mean_absolute": flat(absolute),
    }
    (HERE / "expect.json").write_text(json.dumps(expect) + "\n")
