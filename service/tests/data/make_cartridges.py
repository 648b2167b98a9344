#!/usr/bin/env python3
"""Writes pt/cart_modules*.pt and pt/cart_fixed.pt: cartridges whose parts are torch's modules.

They have eleven layers, so that the layers' order differs from that of their names. The other
cartridges beside them are lists of tensors. Run make_summaries.py afterwards.

    pip install torch && python3 make_cartridges.py
"""

import pathlib

import torch
from torch import nn

PT = pathlib.Path(__file__).parent / "pt"
LAYERS, KV_HEADS, HEAD_DIM = 11, 2, 4


def parameters(tokens, is_trained):
    made = []
    for _ in range(LAYERS):
        keys = torch.randn(1, KV_HEADS, tokens, HEAD_DIM).to(torch.bfloat16)
        made.append(nn.Parameter(keys, requires_grad=is_trained))
    return made


def save(name, kind, kept, **options):
    torch.manual_seed(17)
    cartridge = {
        "trainable_keys": kind(parameters(6, True)),
        "trainable_values": kind(parameters(6, True)),
        f"{kept}_keys": kind(parameters(1, False)),
        f"{kept}_values": kind(parameters(1, False)),
    }
    torch.save(cartridge, PT / f"{name}.pt", **options)


save("cart_modules", nn.ParameterList, "frozen")
save("cart_modules_protocol4", nn.ParameterList, "fixed", pickle_protocol=4)
save("cart_fixed", list, "fixed")
