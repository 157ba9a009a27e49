"""A small decoder with keys and values as inputs and outputs, as Optimum exports decoders."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from nereid_gateway.extras.openai.generation.logits import Sampler
from tests.support.models import generators

LAYERS, HEADS, SIZE = 2, 2, 4
WIDTH = HEADS * SIZE
MAX_TOKENS = 512
Vector = np.ndarray[Any, Any]
_KINDS = tuple(f"{layer}.{kind}" for layer in range(LAYERS) for kind in ("key", "value"))
_STATES = "".join(
    f"""
  state {{ input_name: "past_key_values.{kind}" output_name: "present.{kind}" data_type: TYPE_FP32
    dims: [ {HEADS}, -1, {SIZE} ]
    initial_state {{
      name: "empty" data_type: TYPE_FP32 dims: [ {HEADS}, 0, {SIZE} ] zero_data: true
    }} }}"""
    for kind in _KINDS
)
# A configuration with a place for one sequence, which nothing but its end gives back.
ONE_SLOT = f"""
backend: "onnxruntime"
max_batch_size: 1
instance_group {{ count: 1 kind: KIND_CPU }}
sequence_batching {{
  max_sequence_idle_microseconds: 600000000
  oldest {{ max_candidate_sequences: 1 }}{_STATES}
}}
"""


class _Graph:
    """Nodes of a graph, whose outputs are named as they come."""

    def __init__(self, seed: int) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self._random = np.random.default_rng(seed)

    def add(self, operator: str, *inputs: str, name: str = "", **attributes: Any) -> str:
        output = name or f"n{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, inputs, [output], **attributes))
        return output

    def constant(self, value: Any, dtype: Any = np.int64) -> str:
        name = f"c{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.array(value, dtype), name))
        return name

    def weight(self, *shape: int) -> str:
        return self.constant(self._random.normal(size=shape), np.float32)

    def heads(self, hidden: str) -> str:
        """[batch, tokens, WIDTH] as [batch, HEADS, tokens, SIZE]."""
        product = self.add("MatMul", hidden, self.weight(WIDTH, WIDTH))
        split = self.add("Reshape", product, self.constant([0, 0, HEADS, SIZE]))
        return self.add("Transpose", split, perm=[0, 2, 1, 3])


def past_names() -> list[tuple[str, str]]:
    """Inputs and outputs of keys and values."""
    return [(f"past_key_values.{kind}", f"present.{kind}") for kind in _KINDS]


def _model(
    *, merged: bool, vectors: bool, slim: bool, vocabulary: int, seed: int
) -> onnx.ModelProto:
    graph = _Graph(seed)
    known = generators.tokenizer().get_vocab_size()
    tokens = graph.add("Gather", graph.weight(vocabulary, WIDTH), "input_ids")
    places = graph.add("Gather", graph.weight(MAX_TOKENS, WIDTH), "position_ids")
    hidden = graph.add("Add", tokens, places)
    total = graph.add("Shape", "attention_mask", start=1, end=2)
    scalar = graph.add("Squeeze", total)
    keys = graph.add("Range", graph.constant(0), scalar, graph.constant(1))
    # [batch, 1, tokens, total]: a token sees those before it that the mask has.
    own = graph.add("Unsqueeze", "position_ids", graph.constant([1, 3]))
    sees = graph.add("LessOrEqual", keys, own)
    mask = graph.add("Cast", "attention_mask", to=TensorProto.BOOL)
    there = graph.add("Unsqueeze", mask, graph.constant([1, 2]))
    seen = graph.add("And", sees, there)
    for layer in range(LAYERS):
        query = graph.heads(hidden)
        rows = {}
        for kind in ("key", "value"):
            past = f"past_key_values.{layer}.{kind}"
            if merged:
                past = _chosen(graph, past)
            rows[kind] = graph.add(
                "Concat", past, graph.heads(hidden), axis=2, name=f"present.{layer}.{kind}"
            )
        turned = graph.add("Transpose", rows["key"], perm=[0, 1, 3, 2])
        scores = graph.add("MatMul", query, turned)
        masked = graph.add("Where", seen, scores, graph.constant(-1e9, np.float32))
        mixed = graph.add("MatMul", graph.add("Softmax", masked, axis=-1), rows["value"])
        joined = graph.add("Transpose", mixed, perm=[0, 2, 1, 3])
        flat = graph.add("Reshape", joined, graph.constant([0, 0, WIDTH]))
        added = graph.add("Add", hidden, graph.add("MatMul", flat, graph.weight(WIDTH, WIDTH)))
        hidden = graph.add("Tanh", added)
    output, size = "last_hidden_state", WIDTH
    if not vectors:
        output, size = "logits", vocabulary
        # It says letters that there are, and never ends a text by itself.
        bias = np.zeros(vocabulary)
        bias[[generators.tokenizer().token_to_id(generators.END), *range(known, vocabulary)]] = -50
        product = graph.add("MatMul", hidden, graph.weight(WIDTH, vocabulary))
        hidden = graph.add("Add", product, graph.constant(bias, np.float32))
    if slim:
        kept = graph.add("Unsqueeze", "num_logits_to_keep", graph.constant([0]))
        ends = graph.constant([1 << 31])
        hidden = graph.add("Slice", hidden, graph.add("Neg", kept), ends, graph.constant([1]))
    graph.add("Identity", hidden, name=output)
    batch: Any = "batch"
    ints, floats = TensorProto.INT64, TensorProto.FLOAT
    inputs = [
        helper.make_tensor_value_info("input_ids", ints, [batch, "tokens"]),
        helper.make_tensor_value_info("attention_mask", ints, [batch, "total"]),
        helper.make_tensor_value_info("position_ids", ints, [batch, "tokens"]),
    ]
    outputs = [helper.make_tensor_value_info(output, floats, [batch, "logits", size])]
    for past, present in past_names():
        dims = [batch, HEADS, "past", SIZE]
        inputs.append(helper.make_tensor_value_info(past, floats, dims))
        dims = [batch, HEADS, "total", SIZE]
        outputs.append(helper.make_tensor_value_info(present, floats, dims))
    if slim:
        inputs.append(helper.make_tensor_value_info("num_logits_to_keep", ints, []))
    if merged:
        inputs.append(helper.make_tensor_value_info("use_cache_branch", TensorProto.BOOL, [1]))
    made = helper.make_graph(graph.nodes, "decoder", inputs, outputs, graph.weights)
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def _chosen(graph: _Graph, past: str) -> str:
    """Keys or values with which a graph goes on: none unless `use_cache_branch`."""
    branches = []
    for name, nodes in (
        ("kept", [helper.make_node("Identity", [past], ["kept"])]),
        ("none", [helper.make_node("ConstantOfShape", ["no_tokens"], ["none"])]),
    ):
        value = helper.make_tensor_value_info(name, TensorProto.FLOAT, None)
        branches.append(helper.make_graph(nodes, name, [], [value]))
    if not any(weight.name == "no_tokens" for weight in graph.weights):
        shape = np.array([1, HEADS, 0, SIZE], np.int64)
        graph.weights.append(numpy_helper.from_array(shape, "no_tokens"))
    return graph.add("If", "use_cache_branch", then_branch=branches[0], else_branch=branches[1])


def export(
    folder: Path,
    *,
    merged: bool = False,
    vectors: bool = False,
    slim: bool = False,
    vocabulary: int = 257,
    seed: int = 1,
    config: str = "",
) -> Path:
    """Write the folder of a decoder as a hub has it.

    merged: two graphs in one. vectors: without the layer that makes logits of hidden states.
    slim: with an input for the number of tokens whose logits it gives. vocabulary: number of
    logits. config: config.pbtxt, if there is to be one.
    """
    version = folder / "1" if config else folder
    version.mkdir(parents=True)
    model = _model(merged=merged, vectors=vectors, slim=slim, vocabulary=vocabulary, seed=seed)
    onnx.checker.check_model(model)
    (version / "model.onnx").write_bytes(model.SerializeToString())
    if config:
        (folder / "config.pbtxt").write_text(config)
    generators.tokenizer().save(str(folder / "tokenizer.json"))
    described = {"architectures": ["LlamaForCausalLM"], "max_position_embeddings": MAX_TOKENS}
    (folder / "config.json").write_text(json.dumps(described))
    facts = {"eos_token": generators.END, "chat_template": generators.TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(facts))
    return folder


class BareDecoder:
    """A decoder run by onnxruntime alone, with all tokens each time."""

    def __init__(self, folder: Path, output: str = "logits") -> None:
        (path,) = folder.glob("**/model.onnx")
        self._session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        self._output = output

    def last(self, tokens: list[int]) -> Vector:
        """The output behind the last of these tokens."""
        count = len(tokens)
        feeds: dict[str, Any] = {
            "input_ids": np.array([tokens]),
            "attention_mask": np.ones((1, count), np.int64),
            "position_ids": np.arange(count)[None],
        }
        empty = np.zeros((1, HEADS, 0, SIZE), np.float32)
        feeds.update({past: empty for past, _ in past_names()})
        (output,) = self._session.run([self._output], feeds)
        last: Vector = output[0, -1]
        return last

    def greedy(self, prompt: str, count: int) -> str:
        """The text of the likeliest tokens."""
        return self._write(prompt, count, lambda tokens, _: int(self.last(tokens).argmax()))

    def sampled(self, prompt: str, count: int, sampler: Sampler) -> str:
        """The text of the tokens that are sampled."""
        return self._write(
            prompt,
            count,
            lambda tokens, begin: (
                sampler.sample(self.last(tokens), tokens[:begin], tokens[begin:]).token
            ),
        )

    def _write(self, prompt: str, count: int, choose: Callable[[list[int], int], int]) -> str:
        tokens = generators.tokenizer().encode(prompt).ids
        begin = len(tokens)
        for _ in range(count):
            tokens.append(choose(tokens, begin))
        return str(generators.tokenizer().decode(tokens[begin:]))
