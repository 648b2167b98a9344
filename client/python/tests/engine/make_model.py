"""Makes a tiny random Llama with a tokenizer of its own: make_model.py OUT_DIR TEXT_FILE

Four layers, two KV heads of 64 channels, bfloat16, some 6 million parameters. What it says means
nothing; it is the same on every run and depends on the whole prompt, which is what a comparison
with a cold run needs. The wide initialization makes it depend on the prompt.
"""

from __future__ import annotations

import sys

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

VOCABULARY_MAX = 6000
CONTEXT_TOKENS_MAX = 8192


def main() -> None:
    out_dir, text_file = sys.argv[1], sys.argv[2]
    tokenizer = train_tokenizer(text_file)
    tokenizer.save_pretrained(out_dir)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=CONTEXT_TOKENS_MAX,
        initializer_range=0.2,
    )
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(out_dir)


def train_tokenizer(text_file: str) -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY_MAX,
        special_tokens=["<unk>", "<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train([text_file], trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )


if __name__ == "__main__":
    main()
