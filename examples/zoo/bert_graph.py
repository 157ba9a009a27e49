"""A BERT encoder as an ONNX graph, from the weights by the names Hugging Face gives them.

Batch and sequence are free. Knows nothing of where the weights come from; `bert` is the reference
that its outputs are compared with.
"""

import math

from onnx import ModelProto, TensorProto

from .bert import BertShape, Weights
from .graph import Graph, value

# Added to the scores of padded tokens: far below any real score, and finite, so that a row of
# padding alone gives a mean and not NaN.
MASKED_SCORE = -1e9

INPUTS = ("input_ids", "attention_mask", "token_type_ids")


def build(shape: BertShape, weights: Weights) -> ModelProto:
    """Return the checked model of `last_hidden_state` and `sentence_embedding`."""
    graph = Graph("bert", weights)
    mask = graph.add_node("Cast", "attention_mask", to=TensorProto.FLOAT)
    hidden = _embeddings(graph, shape)
    masked_scores = _masked_scores(graph, mask)
    for layer in range(shape.layers):
        prefix = f"encoder.layer.{layer}"
        attended = _attention(graph, shape, prefix, (hidden, masked_scores))
        hidden = graph.layer_norm(
            f"{prefix}.attention.output.LayerNorm",
            graph.add_node("Add", hidden, attended),
            shape.epsilon,
        )
        narrow = _feed_forward(graph, prefix, hidden)
        hidden = graph.layer_norm(
            f"{prefix}.output.LayerNorm", graph.add_node("Add", hidden, narrow), shape.epsilon
        )
    graph.add_node("Identity", hidden, output="last_hidden_state")
    _sentence_embedding(graph, hidden, mask)
    return graph.model(
        [value(name, TensorProto.INT64, ["batch", "sequence"]) for name in INPUTS],
        [
            value("last_hidden_state", TensorProto.FLOAT, ["batch", "sequence", shape.hidden]),
            value("sentence_embedding", TensorProto.FLOAT, ["batch", shape.hidden]),
        ],
    )


def _embeddings(graph: Graph, shape: BertShape) -> str:
    words = graph.add_node("Gather", graph.weight("embeddings.word_embeddings.weight"), "input_ids")
    types = graph.add_node(
        "Gather", graph.weight("embeddings.token_type_embeddings.weight"), "token_type_ids"
    )
    length = graph.add_node("Shape", "input_ids", start=1, end=2)
    positions = graph.add_node(
        "Slice",
        graph.weight("embeddings.position_embeddings.weight"),
        graph.integers(0),
        length,
        graph.integers(0),
    )
    total = graph.add_node("Add", graph.add_node("Add", words, types), positions)
    return graph.layer_norm("embeddings.LayerNorm", total, shape.epsilon)


def _masked_scores(graph: Graph, mask: str) -> str:
    """[batch, 1, 1, sequence]: 0 for a real token, MASKED_SCORE for padding."""
    padding = graph.add_node("Sub", graph.number(1), mask)
    scores = graph.add_node("Mul", padding, graph.number(MASKED_SCORE))
    return graph.add_node("Unsqueeze", scores, graph.integers(1, 2))


def _attention(
    graph: Graph, shape: BertShape, prefix: str, hidden_and_masked_scores: tuple[str, str]
) -> str:
    hidden, masked_scores = hidden_and_masked_scores
    size = shape.hidden // shape.heads

    def heads(role: str, order: list[int]) -> str:
        values = graph.linear(f"{prefix}.attention.self.{role}", hidden)
        # 0 keeps the batch and the sequence as they are.
        split = graph.add_node("Reshape", values, graph.integers(0, 0, shape.heads, size))
        return graph.add_node("Transpose", split, perm=order)

    query, value = heads("query", [0, 2, 1, 3]), heads("value", [0, 2, 1, 3])
    scores = graph.add_node("MatMul", query, heads("key", [0, 2, 3, 1]))
    scores = graph.add_node("Div", scores, graph.number(math.sqrt(size)))
    weighted = graph.add_node("Softmax", graph.add_node("Add", scores, masked_scores), axis=-1)
    mixed = graph.add_node(
        "Transpose", graph.add_node("MatMul", weighted, value), perm=[0, 2, 1, 3]
    )
    joined = graph.add_node("Reshape", mixed, graph.integers(0, 0, shape.hidden))
    return graph.linear(f"{prefix}.attention.output.dense", joined)


def _feed_forward(graph: Graph, prefix: str, hidden: str) -> str:
    wide = graph.linear(f"{prefix}.intermediate.dense", hidden)
    # GELU with its error function, in the shape that ONNX Runtime recognises and fuses.
    error = graph.add_node("Erf", graph.add_node("Div", wide, graph.number(math.sqrt(2))))
    gated = graph.add_node("Mul", wide, graph.add_node("Add", error, graph.number(1)))
    return graph.linear(f"{prefix}.output.dense", graph.add_node("Mul", gated, graph.number(0.5)))


def _sentence_embedding(graph: Graph, hidden: str, mask: str) -> None:
    """Add the mean of the real tokens' states, at unit length."""
    column = graph.add_node("Unsqueeze", mask, graph.integers(2))
    total = graph.add_node(
        "ReduceSum", graph.add_node("Mul", hidden, column), graph.integers(1), keepdims=0
    )
    count = graph.add_node("ReduceSum", mask, graph.integers(1), keepdims=1)
    mean = graph.add_node("Div", total, graph.add_node("Max", count, graph.number(1)))
    length = graph.add_node("ReduceL2", mean, axes=[1], keepdims=1)
    floor = graph.number(1e-12)  # a sentence of padding alone gives zeros, not NaN
    graph.add_node("Div", mean, graph.add_node("Max", length, floor), output="sentence_embedding")
