"""Vectors and scores from the bytes of responses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from nereid.core.errors import Internal
from nereid.core.wire.messages import InferResponse
from nereid.pb import kserve_pb2
from nereid.text import TextInput, TextMapping
from nereid_gateway.extras.openai.texts import outputs
from nereid_gateway.extras.openai.texts.outputs import OutputReader
from nereid_gateway.extras.openai.texts.rows import Row

IDS = TextInput("ids", "INT64", 2)
ROW = Row(b"", [], 3, 3, b"")
HIDDEN = np.arange(20, dtype=np.float32).reshape(1, 5, 4) - 7


def _response(datatype: str, array: np.ndarray[Any, Any]) -> InferResponse:
    head = kserve_pb2.ModelInferResponse(model_name="m")
    head.outputs.add(name="other", datatype="FP32", shape=[1])
    head.outputs.add(name="out", datatype=datatype, shape=array.shape)
    return InferResponse(1, head.SerializeToString(), [b"\0" * 4, array.tobytes()])


@pytest.mark.parametrize("datatype", ["FP16", "FP32", "FP64", "BF16"])
def test_all_types_of_floats_are_read(datatype: str) -> None:
    array = HIDDEN
    if datatype == "BF16":
        sent: np.ndarray[Any, Any] = (array.view(np.uint32) >> 16).astype(np.uint16)
    else:
        sent = array.astype({"FP16": "<f2", "FP32": "<f4", "FP64": "<f8"}[datatype])
    assert np.array_equal(OutputReader().read(_response(datatype, sent), "out"), array)


def test_a_response_without_the_output_is_an_error_of_the_model() -> None:
    with pytest.raises(Internal, match="lacks the output 'none'"):
        OutputReader().read(_response("FP32", HIDDEN), "none")


@pytest.mark.parametrize(
    ("pooling", "expected"),
    [
        ("mean", HIDDEN[0, :3].mean(axis=0)),
        ("cls", HIDDEN[0, 0]),
        ("last", HIDDEN[0, 2]),
        ("max", HIDDEN[0, :3].max(axis=0)),
    ],
)
def test_vectors_of_padding_are_left_out(pooling: str, expected: np.ndarray[Any, Any]) -> None:
    mapping = TextMapping(frozenset({"embed"}), ids=IDS, output="out", pooling=pooling)
    assert np.allclose(outputs.pooled_vector(HIDDEN, mapping, ROW), expected)
    flat = TextMapping(
        frozenset({"embed"}), ids=TextInput("ids", "INT64", 1), output="out", pooling=pooling
    )
    assert np.allclose(outputs.pooled_vector(HIDDEN[0], flat, ROW), expected)


def test_a_vector_for_each_row_is_taken_as_it_is() -> None:
    mapping = TextMapping(frozenset({"embed"}), ids=IDS, output="out")
    assert outputs.pooled_vector(np.ones((1, 4)), mapping, ROW).tolist() == [1, 1, 1, 1]


def test_an_output_with_too_few_vectors_is_an_error() -> None:
    mapping = TextMapping(frozenset({"embed"}), ids=IDS, output="out", pooling="mean")
    for array in (HIDDEN[:, :2], np.ones((1, 4), np.float32), np.ones(4, np.float32)):
        with pytest.raises(Internal, match="not vectors"):
            outputs.pooled_vector(array, mapping, ROW)


def test_weights_of_the_vocabulary_leave_padding_and_zeros_out() -> None:
    mapping = TextMapping(frozenset({"embed_sparse"}), ids=IDS, output="out", pooling="splade")
    array = HIDDEN.copy()
    array[0, :3, 1] = [-2, 0, -1]
    array[0, 3:, 0] = 9
    found = outputs.sparse_vector(array, mapping, ROW)
    dense = np.log1p(np.maximum(array[0, :3], 0)).max(axis=0)
    assert dense[1] == 0
    assert found.ids.tolist() == np.nonzero(dense)[0].tolist()
    assert np.allclose(found.weights, dense[dense > 0])
    pooled = TextMapping(frozenset({"embed_sparse"}), ids=IDS, output="out")
    found = outputs.sparse_vector(np.array([[0, 2.5, 0, -1]]), pooled, ROW)
    assert (found.ids.tolist(), found.weights.tolist()) == ([1, 3], [2.5, -1])


def test_a_vector_of_zeros_has_no_direction() -> None:
    assert outputs.normalized(np.zeros(3, np.float32)).tolist() == [0, 0, 0]
    assert np.allclose(outputs.normalized(np.array([3, 4], np.float32)), [0.6, 0.8])


def test_large_logits_do_not_overflow() -> None:
    logits = np.array([[-1e4, 0, 1e4]], np.float32)
    with np.errstate(all="raise", under="ignore"):
        assert outputs.activated(logits, "sigmoid").tolist() == [0, 0.5, 1]
        assert outputs.activated(logits, "softmax").tolist() == [0, 0, 1]
    assert outputs.activated(logits, "none").tolist() == [-1e4, 0, 1e4]


@pytest.mark.parametrize(
    ("activation", "labels"), [("softmax", 2), ("softmax", 3), ("sigmoid", 1), ("none", 1)]
)
def test_evidence_orders_rows_as_their_scores_do(activation: str, labels: int) -> None:
    rows = np.random.default_rng(labels).normal(size=(50, labels))
    scores = [outputs.activated(row, activation)[-1] for row in rows]
    evidence = [outputs.evidence(row, activation) for row in rows]
    assert np.array_equal(np.argsort(scores), np.argsort(evidence))
    certain = rows.copy()
    certain[:, -1] += 100
    assert np.array_equal(
        np.argsort([outputs.evidence(row, activation) for row in certain]), np.argsort(evidence)
    )
