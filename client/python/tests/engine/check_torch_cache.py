"""Reads and writes torch caches of every form: check_torch_cache.py SPEC.json ANSWER.json"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import torch

from kvatlas.vllm.pages import TorchCache, UnsupportedCache

BLOCKS = 12
CHOSEN = (7, 0, 3)


def main() -> None:
    checked = [name for name, cache, ratio in forms() if check(cache, ratio) is None]
    for cache in (torch.zeros(5, 5, 4), torch.zeros(4)):
        try:
            TorchCache({"a": cache}, BLOCKS)
        except UnsupportedCache:
            checked.append("refused")
    Path(sys.argv[2]).write_text(json.dumps({"checked": checked}))


def forms() -> list[tuple[str, torch.Tensor, int]]:
    """Each with how many of its blocks make one."""
    chance = torch.Generator().manual_seed(1)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=chance)

    return [
        ("blocks first", random(BLOCKS, 2, 4, 8).to(torch.bfloat16), 1),
        ("keys and values first", random(2, BLOCKS, 4, 2, 8).to(torch.float16), 1),
        ("smaller kernel blocks", random(BLOCKS * 2, 2, 4, 8), 2),
        ("tokens before heads", random(BLOCKS, 4, 2, 8).transpose(1, 2), 1),
        ("eight bits", random(BLOCKS, 2, 4, 8).to(torch.float8_e4m3fn), 1),
    ]


def check(cache: torch.Tensor, ratio: int) -> None:
    whole = TorchCache({"a": cache, "b": cache.clone(), "shares a": cache}, BLOCKS)
    before = cache.clone()
    pages = whole.read(CHOSEN)
    one = cache.numel() // BLOCKS * cache.element_size()
    assert pages.shape == (len(CHOSEN), 2 * one)
    targets = (1, 2, 9)
    whole.write(targets, pages)
    assert np.array_equal(whole.read(targets), pages)
    axis = 0 if cache.shape[0] % BLOCKS == 0 else 1
    for block in range(BLOCKS):
        source = CHOSEN[targets.index(block)] if block in targets else block
        for part in range(ratio):
            now = cache.select(axis, block * ratio + part).float()
            assert torch.equal(now, before.select(axis, source * ratio + part).float()), block


if __name__ == "__main__":
    main()
