"""Writes the tiny random models beside it, and what transformers makes of layer 0.

    python -m venv venv && venv/bin/pip install torch transformers safetensors numpy
    venv/bin/python make_models.py

Each folder is a whole model as its library saves it, and expected.safetensors:

    inv_freq           [bands]             f32
    attention_scaling  [1]                 f32
    tokens             [tokens]            i32
    starts             [starts]            i32   positions of the first token
    pre_rope           [tokens, heads, head_dim]          f32
    post_rope          [starts, tokens, heads, head_dim]  f32

The queries are caught on their way into and out of transformers' own apply_rotary_pos_emb.
"""

import copy
import importlib
import json
import pathlib
import shutil

import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM

HERE = pathlib.Path(__file__).parent
TOKENS = [3, 0, 41, 17, 17, 8]
STARTS = [0, 7, 1000, 100_000]
SMALL = {
    "vocab_size": 42,
    "intermediate_size": 8,
    "num_hidden_layers": 1,
    "max_position_embeddings": 256,
    "tie_word_embeddings": True,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {"factor": 4.0, "original_max_position_embeddings": 64}

# Folder: the library's name of the model, type of the weights, changes to SMALL.
MODELS = {
    "llama-llama3-f32": ("llama", torch.float32, dict(
        hidden_size=32, num_attention_heads=2, num_key_value_heads=1, rope_parameters=LLAMA3)),
    "llama-default-bf16": ("llama", torch.bfloat16, dict(
        hidden_size=64, num_attention_heads=4, num_key_value_heads=2, rms_norm_eps=1e-5,
        rope_theta=10_000.0, rope_scaling=None)),
    # The bias that Llama can have, and heads that are wider than their share.
    "llama-yarn-bf16": ("llama", torch.bfloat16, dict(
        hidden_size=48, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
        attention_bias=True, rope_theta=10_000.0, rope_scaling=dict(type="yarn", **YARN))),
    "llama-yarn-mscale-f32": ("llama", torch.float32, dict(
        hidden_size=32, num_attention_heads=2, num_key_value_heads=2,
        rope_parameters=dict(
            rope_type="yarn", rope_theta=50_000.0, mscale=1.25, mscale_all_dim=0.75,
            beta_fast=16, beta_slow=2, truncate=False, **YARN))),
    "mistral-linear-f32": ("mistral", torch.float32, dict(
        hidden_size=32, num_attention_heads=4, num_key_value_heads=2,
        rope_theta=1_000_000.0, rope_scaling=dict(type="linear", factor=2.5))),
    "qwen2-f16": ("qwen2", torch.float16, dict(
        hidden_size=56, num_attention_heads=4, num_key_value_heads=2, rope_theta=1_000_000.0)),
    "qwen3-bf16": ("qwen3", torch.bfloat16, dict(
        hidden_size=40, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
        rope_theta=1_000_000.0)),
    "qwen3-yarn-f32": ("qwen3", torch.float32, dict(
        hidden_size=40, num_attention_heads=2, num_key_value_heads=1, head_dim=32,
        rope_parameters=dict(
            rope_type="yarn", rope_theta=1_000_000.0, attention_factor=1.5, **YARN))),
}
FLAT = {"llama-yarn-bf16", "llama-default-bf16", "mistral-linear-f32"}
SHARD = {"llama-yarn-bf16": "6KB"}


def main():
    torch.manual_seed(20)
    for name, (kind, dtype, changes) in MODELS.items():
        folder = HERE / name
        shutil.rmtree(folder, ignore_errors=True)
        write(folder, kind, dtype, changes)
        if name in FLAT:
            spell_flat(folder / "config.json", changes)
        save_file(expected(folder, kind, dtype), folder / "expected.safetensors")


def write(folder, kind, dtype, changes):
    # A copy: the library moves what it is given to where it keeps it.
    config = AutoConfig.for_model(kind, **copy.deepcopy({**SMALL, **changes}))
    model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            around = 1.0 if "norm" in parameter_name else 0.0
            parameter.normal_(around, 0.4)
    model.save_pretrained(folder, max_shard_size=SHARD.get(folder.name, "1GB"))
    (folder / "generation_config.json").unlink(missing_ok=True)


def spell_flat(path, changes):
    """As files were written before version 5."""
    config = json.loads(path.read_text())
    config.pop("rope_parameters")
    if "head_dim" not in changes:
        config.pop("head_dim")
    config["rope_theta"] = changes["rope_theta"]
    config["rope_scaling"] = changes["rope_scaling"]
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def expected(folder, kind, dtype):
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="eager")
    module = importlib.import_module(f"transformers.models.{kind}.modeling_{kind}")
    rotate, caught = module.apply_rotary_pos_emb, []

    def catch(query, key, *rest, **named):
        rotated = rotate(query, key, *rest, **named)
        # [batch, heads, tokens, head_dim] to [tokens, heads, head_dim].
        caught.append([x[0].transpose(0, 1).float().contiguous() for x in (query, rotated[0])])
        return rotated

    module.apply_rotary_pos_emb = catch
    tokens = torch.tensor([TOKENS])
    for start in STARTS:
        positions = torch.arange(start, start + len(TOKENS))[None]
        with torch.no_grad():
            model.model(tokens, position_ids=positions, use_cache=False)
    module.apply_rotary_pos_emb = rotate
    assert len(caught) == len(STARTS)
    rotary = model.model.rotary_emb
    return {
        "inv_freq": rotary.inv_freq.float().clone(),
        "attention_scaling": torch.tensor([rotary.attention_scaling], dtype=torch.float32),
        "tokens": torch.tensor(TOKENS, dtype=torch.int32),
        "starts": torch.tensor(STARTS, dtype=torch.int32),
        "pre_rope": caught[0][0].clone(),
        "post_rope": torch.stack([post for _, post in caught]),
    }


if __name__ == "__main__":
    main()
