"""The BERT graph in ONNX Runtime against the NumPy forward pass, on a tiny random encoder."""

from typing import Any

import numpy as np
import onnxruntime
import pytest
from numpy.typing import NDArray

from examples.zoo.bert import BertShape, Tokens, embed, forward
from examples.zoo.bert_graph import build

SHAPE = BertShape(layers=2, heads=4, hidden=16, epsilon=1e-12)
WIDE = 32
VOCABULARY, POSITIONS, TYPES = 50, 12, 2


def random_weights() -> dict[str, NDArray[Any]]:
    random = np.random.default_rng(0)
    weights: dict[str, NDArray[Any]] = {}

    def dense(name: str, *shape: int) -> None:
        weights[f"{name}.weight"] = random.normal(0, 0.5, shape).astype(np.float32)
        weights[f"{name}.bias"] = random.normal(0, 0.5, shape[0]).astype(np.float32)

    hidden = SHAPE.hidden
    dense("embeddings.word_embeddings", VOCABULARY, hidden)
    dense("embeddings.position_embeddings", POSITIONS, hidden)
    dense("embeddings.token_type_embeddings", TYPES, hidden)
    dense("embeddings.LayerNorm", hidden)
    for layer in range(SHAPE.layers):
        prefix = f"encoder.layer.{layer}"
        for role in ("query", "key", "value"):
            dense(f"{prefix}.attention.self.{role}", hidden, hidden)
        dense(f"{prefix}.attention.output.dense", hidden, hidden)
        dense(f"{prefix}.attention.output.LayerNorm", hidden)
        dense(f"{prefix}.intermediate.dense", WIDE, hidden)
        dense(f"{prefix}.output.dense", hidden, WIDE)
        dense(f"{prefix}.output.LayerNorm", hidden)
    return weights


def random_tokens(lengths: list[int]) -> Tokens:
    random = np.random.default_rng(1)
    shape = (len(lengths), max(lengths))
    mask = (np.arange(shape[1]) < np.array(lengths)[:, None]).astype(np.int64)
    return Tokens(random.integers(0, VOCABULARY, shape), mask, random.integers(0, TYPES, shape))


@pytest.fixture(scope="module")
def weights() -> dict[str, NDArray[Any]]:
    return random_weights()


@pytest.fixture(scope="module")
def session(weights: dict[str, NDArray[Any]]) -> Any:
    model = build(SHAPE, weights).SerializeToString()
    return onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])


@pytest.mark.parametrize("lengths", [[1], [7], [12, 3], [5, 5, 2, 9]])
def test_graph_agrees_with_numpy(
    session: Any, weights: dict[str, NDArray[Any]], lengths: list[int]
) -> None:
    tokens = random_tokens(lengths)
    hidden, embedding = session.run(None, tokens.by_name())

    expected = forward(SHAPE, weights, tokens)
    assert hidden.shape == (len(lengths), max(lengths), SHAPE.hidden)
    np.testing.assert_allclose(hidden, expected, atol=1e-4)
    np.testing.assert_allclose(embedding, embed(expected, tokens.attention_mask), atol=1e-5)


def test_padding_does_not_reach_the_real_tokens(session: Any) -> None:
    tokens = random_tokens([9, 4])
    alone = {name: array[1:, :4] for name, array in tokens.by_name().items()}
    padded = session.run(["sentence_embedding"], tokens.by_name())[0][1]
    np.testing.assert_allclose(padded, session.run(["sentence_embedding"], alone)[0][0], atol=1e-5)


def test_padding_alone_gives_zeros_and_not_nan(session: Any) -> None:
    tokens = random_tokens([3, 3])
    tokens.attention_mask[1] = 0
    embedding = session.run(["sentence_embedding"], tokens.by_name())[0]
    np.testing.assert_array_equal(embedding[1], np.zeros(SHAPE.hidden))


def test_an_encoder_of_another_kind_is_refused() -> None:
    config = {"hidden_act": "relu", "position_embedding_type": "absolute"}
    with pytest.raises(ValueError, match="only BERT with gelu"):
        BertShape.from_config(config)
