"""Vectors, scores and tokens' vectors in the responses of rows."""

from __future__ import annotations

from math import sqrt
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from nereid.bounded_cache import BoundedCache
from nereid.core.errors import Internal
from nereid.core.tensors.tensors import NUMPY_TYPE, from_raw
from nereid.pb import kserve_pb2

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from nereid.core.wire.messages import InferResponse
    from nereid.text import TextMapping
    from nereid_gateway.extras.openai.texts.rows import Row

    Vector = NDArray[np.float32]

_MAX_HEADS: Final = 2048
# The least norm, as in torch.nn.functional.normalize.
_MIN_NORM: Final = 1e-12


class _Place(NamedTuple):
    position: int
    datatype: str
    shape: tuple[int, ...]


class OutputReader:
    """Finds the output of a mapping in responses."""

    def __init__(self) -> None:
        self._places = BoundedCache[tuple[bytes, str], _Place](_MAX_HEADS)

    def read(self, response: InferResponse, name: str) -> NDArray[Any]:
        """Return an output as an array of floats. Raises Internal if the response lacks it."""
        key = response.head, name
        place = self._places.get(key)
        if place is None:
            place = self._places.remember(key, _find(response.head, name))
        payload: Any = response.payloads[place.position]
        array = from_raw(payload, place.datatype, place.shape)
        if place.datatype == "BF16":
            return (array.astype(np.uint32) << 16).view(np.float32)
        return array


def _find(head: bytes, name: str) -> _Place:
    message = kserve_pb2.ModelInferResponse.FromString(head)
    for index, output in enumerate(message.outputs):
        if output.name == name:
            if output.datatype not in NUMPY_TYPE or output.datatype == "BYTES":
                raise Internal(f"output '{name}' has the type {output.datatype}, not numbers")
            return _Place(index, output.datatype, tuple(output.shape))
    raise Internal(f"the model's response lacks the output '{name}'")


def token_vectors(array: NDArray[Any], mapping: TextMapping, row: Row) -> Vector:
    """Return a copy of the vectors of a row's tokens: [tokens, size]."""
    return _tokens_of(array, mapping, row).astype(np.float32)


def pooled_vector(array: NDArray[Any], mapping: TextMapping, row: Row) -> Vector:
    """Return the vector of a row's text, before it is cut or normalized.

    It is a copy: a view would keep the vectors of all tokens of all rows in memory.
    """
    if not mapping.pooling:
        return array.reshape(-1).astype(np.float32)
    vectors = _tokens_of(array, mapping, row)
    pooled: NDArray[Any]
    match mapping.pooling:
        case "cls":
            pooled = vectors[0]
        case "last":
            pooled = vectors[-1]
        case "max":
            pooled = vectors.max(axis=0)
        case _:
            pooled = vectors.mean(axis=0, dtype=np.result_type(vectors.dtype, np.float32))
    return pooled.astype(np.float32)


class SparseVector(NamedTuple):
    """Weights of tokens of the vocabulary, without those that are 0."""

    ids: NDArray[np.int64]
    weights: Vector


def sparse_vector(array: NDArray[Any], mapping: TextMapping, row: Row) -> SparseVector:
    """Return the weights of a row's text."""
    if mapping.pooling:
        # log(1 + relu(x)) never falls, so the largest logit gives the largest weight.
        logits = _tokens_of(array, mapping, row).max(axis=0).astype(np.float32)
        weights = np.log1p(np.maximum(logits, np.float32(0)))
    else:
        weights = array.reshape(-1).astype(np.float32)
    (ids,) = np.nonzero(weights)
    return SparseVector(ids, weights[ids])


def _tokens_of(array: NDArray[Any], mapping: TextMapping, row: Row) -> NDArray[Any]:
    is_batch = mapping.ids is None or mapping.ids.rank > 1
    vectors = array[0] if is_batch and array.ndim == 3 else array
    if vectors.ndim != 2 or len(vectors) < row.tokens:
        raise Internal(f"output '{mapping.output}' has the shape {list(array.shape)}, not vectors")
    return vectors[: row.tokens]


def normalized(vector: Vector) -> Vector:
    """Return a vector with the norm 1."""
    unit: Vector = vector / np.float32(max(sqrt(vector @ vector), _MIN_NORM))
    return unit


def activated(logits: NDArray[Any], activation: str) -> NDArray[np.float64]:
    """Return scores of logits. activation: softmax, sigmoid or none."""
    values = logits.reshape(-1).astype(np.float64)
    if activation == "softmax":
        powers = np.exp(values - values.max())
        return np.asarray(powers / powers.sum())
    if activation == "sigmoid":
        # The form is chosen by sign, so that no power overflows.
        powers = np.exp(-np.abs(values))
        return np.where(values >= 0, 1 / (1 + powers), powers / (1 + powers))
    return values


def evidence(logits: NDArray[Any], activation: str) -> float:
    """Return a number that orders rows as their last score does, without its rounding to 0 or 1."""
    values = logits.reshape(-1).astype(np.float64)
    if activation == "softmax" and len(values) > 1:
        return float(values[-1] - np.logaddexp.reduce(values[:-1]))
    return float(values[-1])
