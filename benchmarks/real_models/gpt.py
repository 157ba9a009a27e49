"""One step of a small GPT: input is a token, output is the likelihood of each next token.

The keys and values of earlier tokens are implicit state of a sequence. The weights are random, with
a fixed seed. The state has its full size from the first step on, as in graphs for accelerators;
positions of later tokens are masked.
"""

import itertools
import math
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from onnx import TensorProto, checker, helper, numpy_helper

from benchmarks.peers import native
from benchmarks.real_models import subject
from benchmarks.real_models.subject import Run

_NAME = "gpt"
_LAYERS, _HEADS, _HIDDEN, _CONTEXT, _VOCABULARY = 6, 6, 384, 128, 2048
_SIZE = _HIDDEN // _HEADS
_PAST = (_LAYERS, 2, _HEADS, _CONTEXT, _SIZE)
_MAX_BATCH_SIZE = 16
_CONFIG = f"""\
name: "{_NAME}"
backend: "onnxruntime"
max_batch_size: {_MAX_BATCH_SIZE}
input {{ name: "token" data_type: TYPE_INT64 dims: [ 1 ] }}
input {{ name: "position" data_type: TYPE_INT64 dims: [ 1 ] }}
output {{ name: "logits" data_type: TYPE_FP32 dims: [ {_VOCABULARY} ] }}
sequence_batching {{
  max_sequence_idle_microseconds: 5000000
  oldest {{ max_candidate_sequences: {_MAX_BATCH_SIZE} }}
  state {{
    input_name: "past" output_name: "present" data_type: TYPE_FP32 dims: {[*_PAST]}
    initial_state {{ name: "nothing" data_type: TYPE_FP32 dims: {[*_PAST]} zero_data: true }}
  }}
}}
"""


@dataclass
class _Graph:
    nodes: list[Any] = field(default_factory=list)
    weights: list[Any] = field(default_factory=list)
    random: np.random.Generator = field(default_factory=lambda: np.random.default_rng(27))

    def node(self, kind: str, *inputs: str, output: str = "", **attributes: Any) -> str:
        """Add a node, and return the name of its output."""
        output = output or f"{kind}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [output], name=output, **attributes))
        return output

    def constant(self, values: Any) -> str:
        """Add a constant, and return its name."""
        name = f"constant_{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(values), name))
        return name

    def weight(self, *dims: int, scale: float) -> str:
        """Add a random weight, and return its name."""
        return self.constant(self.random.normal(0, scale, dims).astype(np.float32))

    def linear(self, values: str, inputs: int, outputs: int) -> str:
        """Add a linear layer, and return the name of its output."""
        weight = self.weight(inputs, outputs, scale=1 / math.sqrt(inputs))
        bias = self.weight(outputs, scale=0.1)
        return self.node("Add", self.node("MatMul", values, weight), bias)

    def norm(self, values: str) -> str:
        """Add a normalisation, and return the name of its output."""
        scale = self.constant(np.ones(_HIDDEN, np.float32))
        bias = self.constant(np.zeros(_HIDDEN, np.float32))
        return self.node("LayerNormalization", values, scale, bias, axis=-1)


def _model() -> bytes:
    graph = _Graph()
    column = graph.constant(np.arange(_CONTEXT).reshape(1, 1, _CONTEXT, 1))
    row = graph.constant(np.arange(_CONTEXT).reshape(1, 1, 1, _CONTEXT))
    # Shape [batch, 1, 1, 1].
    here = graph.node("Reshape", "position", graph.constant(np.array([-1, 1, 1, 1])))
    is_here = graph.node("Equal", column, here)
    ahead = graph.node("Cast", graph.node("Greater", row, here), to=TensorProto.FLOAT)
    masked = graph.node("Mul", ahead, graph.constant(np.float32(-1e9)))
    words = graph.weight(_VOCABULARY, _HIDDEN, scale=0.3)
    places = graph.weight(_CONTEXT, _HIDDEN, scale=0.3)
    # Shape [batch, 1, hidden].
    hidden = graph.node(
        "Add", graph.node("Gather", words, "token"), graph.node("Gather", places, "position")
    )
    heads = graph.constant(np.array([0, 0, _HEADS, _SIZE]))
    presents = []
    for layer in range(_LAYERS):
        past = graph.node("Gather", "past", graph.constant(np.int64(layer)), axis=1)
        normed = graph.norm(hidden)
        query, key, value = (
            graph.node(
                "Transpose",
                graph.node("Reshape", graph.linear(normed, _HIDDEN, _HIDDEN), heads),
                perm=[0, 2, 1, 3],
            )
            for _ in range(3)
        )
        keys, values = (
            graph.node(
                "Where",
                is_here,
                new,
                graph.node("Gather", past, graph.constant(np.int64(kind)), axis=1),
            )
            for kind, new in enumerate((key, value))
        )
        axis = graph.constant(np.array([1]))
        pair = [graph.node("Unsqueeze", tensor, axis) for tensor in (keys, values)]
        presents.append(graph.node("Unsqueeze", graph.node("Concat", *pair, axis=1), axis))
        scores = graph.node("MatMul", query, graph.node("Transpose", keys, perm=[0, 1, 3, 2]))
        scores = graph.node("Mul", scores, graph.constant(np.float32(1 / math.sqrt(_SIZE))))
        shares = graph.node("Softmax", graph.node("Add", scores, masked), axis=-1)
        mixed = graph.node("Transpose", graph.node("MatMul", shares, values), perm=[0, 2, 1, 3])
        mixed = graph.node("Reshape", mixed, graph.constant(np.array([0, 0, _HIDDEN])))
        hidden = graph.node("Add", hidden, graph.linear(mixed, _HIDDEN, _HIDDEN))
        wide = graph.node("Relu", graph.linear(graph.norm(hidden), _HIDDEN, 4 * _HIDDEN))
        hidden = graph.node("Add", hidden, graph.linear(wide, 4 * _HIDDEN, _HIDDEN))
    graph.node("Concat", *presents, axis=1, output="present")
    last = graph.node("Squeeze", graph.norm(hidden), graph.constant(np.array([1])))
    graph.node("MatMul", last, graph.weight(_HIDDEN, _VOCABULARY, scale=0.1), output="logits")
    numbers, floats = TensorProto.INT64, TensorProto.FLOAT
    body = helper.make_graph(
        graph.nodes,
        _NAME,
        [
            helper.make_tensor_value_info("token", numbers, ["batch", 1]),
            helper.make_tensor_value_info("past", floats, ["batch", *_PAST]),
            helper.make_tensor_value_info("position", numbers, ["batch", 1]),
        ],
        [
            helper.make_tensor_value_info("logits", floats, ["batch", _VOCABULARY]),
            helper.make_tensor_value_info("present", floats, ["batch", *_PAST]),
        ],
        graph.weights,
    )
    model = helper.make_model(body, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    checker.check_model(model)
    return bytes(model.SerializeToString())


@dataclass(frozen=True)
class Gpt:
    """Sequences that fill the context with tokens, one sequence after the other."""

    file: Path

    name = batched = _NAME
    peers = (native.NAME,)

    def write(self, repository: Path, peer: str) -> None:  # noqa: ARG002 - the same for each
        """Write the repository."""
        folder = repository / _NAME
        (folder / "1").mkdir(parents=True)
        shutil.copy(self.file, folder / "1" / "model.onnx")
        subject.write_config(folder, _CONFIG)

    def requests(self, client: int) -> Iterator[bytes]:
        """Yield a client's requests."""
        outputs = [subject.binary_output("logits")]
        for number in itertools.count():
            for step in range(_CONTEXT):
                token = np.array([[(client + number + step) % _VOCABULARY]])
                feed = {"token": token, "position": np.array([[step]])}
                flags = {
                    # The client has a sequence of its own: what a run leaves unfinished, the next
                    # one begins anew.
                    "sequence_id": client + 1,
                    "sequence_start": step == 0,
                    "sequence_end": step == _CONTEXT - 1,
                }
                yield subject.http_request(_NAME, feed, outputs, flags)

    def open_bare(self, threads: int) -> Callable[[int], Run]:
        """Return the loop for a batch size."""
        session = subject.open_session(self.file, threads)

        def run_batches(batch_size: int) -> Run:
            nothing = np.zeros((batch_size, *_PAST), np.float32)
            past, steps = nothing, 0

            def run() -> int:
                nonlocal past, steps
                step = steps % _CONTEXT
                tokens, position = (np.full((batch_size, 1), value) for value in (steps, step))
                feed = {
                    "token": tokens % _VOCABULARY,
                    "position": position,
                    "past": past if step else nothing,
                }
                _, past = session.run(["logits", "present"], feed)
                steps += 1
                return batch_size

            return run

        return run_batches


def subjects(models: Path) -> list[Gpt]:
    """Return the subjects of this module."""
    file = models / "gpt-seeded" / "model.onnx"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(_model())
    return [Gpt(file)]
