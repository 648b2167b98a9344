"""Carries a command out: load, prefill, score, write, put, sweep."""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch

# transformers needs it anyway.
from tqdm import tqdm
from transformers import AutoModelForCausalLM, AutoTokenizer

from kvatlas import Client, KvatlasError
from kvatlas.bake.cartridge import Cartridge, prefill
from kvatlas.bake.scores import ALGORITHMS, schema
from kvatlas.bake.sweep import Line, Plan, ask, measure, table

PROBES = ("\n\nIn short, the text above says that", "\n\nThe most important fact in it is that")
JUDGES = ("\n\nQuestion: What does the text report?\nAnswer: It reports that",)


def bake(options: argparse.Namespace) -> None:
    """Everything, in order."""
    model, tokenizer = load(options)
    tokens = read_prefix(options, tokenizer)
    if len(tokens) < 2 * options.block_size:
        raise ValueError(f"the prefix has {len(tokens)} tokens, less than two blocks")
    probes = encode(tokenizer, options.probe or PROBES)
    judges = encode(tokenizer, options.judge or JUDGES)
    longest = len(tokens) + max(map(len, [*probes, *judges]))
    context = getattr(model.config.get_text_config(), "max_position_embeddings", longest)
    if longest > context:
        raise ValueError(f"with what follows it the prefix has {longest} tokens, over {context}")
    with Bar("prefill") as bar:
        cartridge = prefill(model, tokens, options.block_size, bar.tell)
    cartridge = dataclasses.replace(cartridge, batch=options.batch)
    print(f"{cartridge.length} tokens, {cartridge.blocks} blocks, {cartridge.layers} layers")
    options.out.mkdir(parents=True, exist_ok=True)
    files = {}
    for name in options.algorithms:
        with Bar(name) as bar:
            scores = ALGORITHMS[name](cartridge, probes, bar.tell)
        files[name] = options.out / file_name(options.prefix_hash, name)
        torch.save(schema(cartridge, name, scores, options.model), files[name])
        print(f"wrote {files[name]}")
    if not options.no_put:
        lines = put_and_ask(options, cartridge, files)
        with Bar("sweep") as bar:
            lines = measure(cartridge, judges, lines, bar.tell)
        print(table(lines, cartridge.blocks))


def put_and_ask(
    options: argparse.Namespace, cartridge: Cartridge, files: dict[str, Path]
) -> list[Line]:
    """Puts the priors, and asks for every manifest of the sweep."""
    with Client(options.address) as client:
        for name, path in files.items():
            try:
                stored = client.put_prior(
                    path, options.prefix_hash, algorithm=name, repair=options.repair
                )
            except KvatlasError as error:
                raise ValueError(f"{path} was not put: {error}") from None
            print(f"put {name}, generation {stored.generation}")
        plan = Plan(options.algorithms, options.k, options.policies)
        return ask(client, cartridge, options.prefix_hash, plan)


def file_name(prefix_hash: str, algorithm: str) -> str:
    """A prefix's name may be anything; a file's may not."""
    return re.sub(r"[^\w.-]", "_", f"{prefix_hash}_{algorithm.replace('-', '_')}.pt")


def load(options: argparse.Namespace) -> tuple[Any, Any]:
    """The model and its tokenizer."""
    dtype = options.dtype or ("float32" if options.device == "cpu" else "bfloat16")
    if not isinstance(getattr(torch, dtype, None), torch.dtype):
        raise ValueError(f"--dtype {dtype} is none of torch's")
    # "eager" is the one implementation that tells its attention.
    model = AutoModelForCausalLM.from_pretrained(options.model, attn_implementation="eager")
    model = model.eval().requires_grad_(False).to(options.device, getattr(torch, dtype))
    return model, AutoTokenizer.from_pretrained(options.model)


def read_prefix(options: argparse.Namespace, tokenizer: Any) -> torch.Tensor:
    """The cartridge's tokens."""
    if options.tokens is not None:
        ids = json.loads(options.tokens.read_text())
        if not (isinstance(ids, list) and all(type(i) is int and i >= 0 for i in ids)):
            raise ValueError(f"{options.tokens} is no JSON list of token ids")
    else:
        ids = tokenizer(options.text.read_text())["input_ids"]
    return torch.tensor(ids, dtype=torch.long)


def encode(tokenizer: Any, texts: Sequence[str]) -> list[torch.Tensor]:
    """Texts that follow the prefix, so without a token that begins one."""
    encoded = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
    if any(len(ids) < 2 for ids in encoded):
        raise ValueError("a probe and a judge each have at least two tokens")
    return [torch.tensor(ids, dtype=torch.long) for ids in encoded]


class Bar(AbstractContextManager["Bar"]):
    """A progress bar on the error output."""

    def __init__(self, name: str) -> None:
        self._bar = tqdm(desc=name.ljust(12), file=sys.stderr)

    def tell(self, done: int, steps: int) -> None:
        """So many are done."""
        self._bar.total = steps
        self._bar.update(done - self._bar.n)

    def __exit__(self, *_: object) -> None:
        self._bar.close()
