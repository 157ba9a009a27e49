"""A GPT-2 decoder as an ONNX graph that is run once for each token.

Each run gets back the keys and values that earlier runs have computed. Batch, sequence and past are
free. The module does not know where the weights come from; `gpt` is the reference that its outputs
are compared with.
"""

import math

from onnx import ModelProto, TensorProto

from .gpt import GptShape, Weights
from .graph import Graph, value

# Added to the scores of tokens that are ahead: far below any real score.
MASKED_SCORE = -1e9


def build(shape: GptShape, weights: Weights) -> ModelProto:
    """Return the checked model.

    Inputs are `input_ids` and `past`; outputs are the last token's `logits`, and `present`, the
    next run's past: [layer, key or value, batch, head, token, number].
    """
    graph = Graph("gpt", weights)
    length = graph.add_node("Shape", "input_ids", start=1, end=2)
    past_length = graph.add_node("Shape", "past", start=4, end=5)
    total = graph.add_node("Add", past_length, length)
    positions = _range(graph, past_length, total)
    words = graph.add_node("Gather", graph.weight("wte.weight"), "input_ids")
    hidden = graph.add_node(
        "Add",
        words,
        graph.add_node("Gather", graph.weight("wpe.weight"), positions),
        output="embedded",
    )
    masked_scores = _masked_scores(graph, positions, total)
    presents = []
    for layer in range(shape.layers):
        attended, present = _attention(graph, shape, layer, (hidden, masked_scores))
        presents.append(graph.add_node("Unsqueeze", present, graph.integers(0)))
        hidden = graph.add_node("Add", hidden, attended)
        hidden = graph.add_node("Add", hidden, _feed_forward(graph, shape, layer, hidden))
    graph.add_node("Concat", *presents, axis=0, output="present")
    hidden = graph.layer_norm("ln_f", hidden, shape.epsilon)
    last = graph.add_node("Squeeze", _last(graph, hidden), graph.integers(1))
    head = graph.constant("wte.weight.T", weights["wte.weight"].T)
    graph.add_node("MatMul", last, head, output="logits")
    size = shape.hidden // shape.heads
    cache: list[str | int] = [shape.layers, 2, "batch", shape.heads]
    return graph.model(
        [
            value("input_ids", TensorProto.INT64, ["batch", "sequence"]),
            value("past", TensorProto.FLOAT, [*cache, "past", size]),
        ],
        [
            value("logits", TensorProto.FLOAT, ["batch", shape.vocabulary]),
            value("present", TensorProto.FLOAT, [*cache, "total", size]),
        ],
    )


def _range(graph: Graph, start: str, end: str) -> str:
    scalars = [graph.add_node("Squeeze", each, graph.integers(0)) for each in (start, end)]
    step = graph.add_node("Squeeze", graph.integers(1), graph.integers(0))
    return graph.add_node("Range", *scalars, step)


def _last(graph: Graph, hidden: str) -> str:
    ends = graph.integers(2**31)
    return graph.add_node("Slice", hidden, graph.integers(-1), ends, graph.integers(1))


def _masked_scores(graph: Graph, positions: str, total: str) -> str:
    """[sequence, total]: 0 for a token that is not ahead, MASKED_SCORE for one that is."""
    all_positions = _range(graph, graph.integers(0), total)
    column = graph.add_node("Unsqueeze", positions, graph.integers(1))
    row = graph.add_node("Unsqueeze", all_positions, graph.integers(0))
    ahead = graph.add_node("Cast", graph.add_node("Greater", row, column), to=TensorProto.FLOAT)
    return graph.add_node("Mul", ahead, graph.number(MASKED_SCORE))


def _attention(
    graph: Graph, shape: GptShape, layer: int, hidden_and_masked_scores: tuple[str, str]
) -> tuple[str, str]:
    """Add a layer; return its part of the hidden state and of the present."""
    hidden, masked_scores = hidden_and_masked_scores
    name, size = f"h.{layer}", shape.hidden // shape.heads
    normed = graph.layer_norm(f"{name}.ln_1", hidden, shape.epsilon)
    joined = _linear(graph, f"{name}.attn.c_attn", normed)

    def heads(role: int) -> str:
        first, end = graph.integers(role * shape.hidden), graph.integers((role + 1) * shape.hidden)
        part = graph.add_node("Slice", joined, first, end, graph.integers(2))
        # 0 keeps the batch and the sequence as they are.
        split = graph.add_node("Reshape", part, graph.integers(0, 0, shape.heads, size))
        return graph.add_node("Transpose", split, perm=[0, 2, 1, 3])

    past = graph.add_node("Gather", "past", _index(graph, layer), axis=0)
    keys, values = (
        graph.add_node(
            "Concat",
            graph.add_node("Gather", past, _index(graph, kind), axis=0),
            heads(kind + 1),
            axis=2,
        )
        for kind in (0, 1)
    )
    present = [graph.add_node("Unsqueeze", each, graph.integers(0)) for each in (keys, values)]
    scores = graph.add_node(
        "MatMul", heads(0), graph.add_node("Transpose", keys, perm=[0, 1, 3, 2])
    )
    scores = graph.add_node("Div", scores, graph.number(math.sqrt(size)))
    weighted = graph.add_node("Softmax", graph.add_node("Add", scores, masked_scores), axis=-1)
    mixed = graph.add_node(
        "Transpose", graph.add_node("MatMul", weighted, values), perm=[0, 2, 1, 3]
    )
    flat = graph.add_node("Reshape", mixed, graph.integers(0, 0, shape.hidden))
    attended = _linear(graph, f"{name}.attn.c_proj", flat)
    return attended, graph.add_node("Concat", *present, axis=0)


def _index(graph: Graph, number: int) -> str:
    return graph.add_node("Squeeze", graph.integers(number), graph.integers(0))


def _feed_forward(graph: Graph, shape: GptShape, layer: int, hidden: str) -> str:
    normed = graph.layer_norm(f"h.{layer}.ln_2", hidden, shape.epsilon)
    wide = _linear(graph, f"h.{layer}.mlp.c_fc", normed)
    # GPT-2's GELU, by the hyperbolic tangent.
    cube = graph.add_node(
        "Mul",
        graph.add_node("Mul", wide, graph.add_node("Mul", wide, wide)),
        graph.number(0.044715),
    )
    inner = graph.add_node(
        "Mul", graph.add_node("Add", wide, cube), graph.number(math.sqrt(2 / math.pi))
    )
    gated = graph.add_node(
        "Mul", wide, graph.add_node("Add", graph.add_node("Tanh", inner), graph.number(1))
    )
    return _linear(graph, f"h.{layer}.mlp.c_proj", graph.add_node("Mul", gated, graph.number(0.5)))


def _linear(graph: Graph, name: str, values: str) -> str:
    """GPT-2 keeps its weights with the inputs first."""
    product = graph.add_node("MatMul", values, graph.weight(f"{name}.weight"))
    return graph.add_node("Add", product, graph.weight(f"{name}.bias"))
