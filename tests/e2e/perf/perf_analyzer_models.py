"""Models of the names and shapes in perf_analyzer's documentation.

Workers import this file by itself, so it imports nothing of the tests.
"""

from collections.abc import Iterator
from typing import Annotated, NamedTuple

import numpy as np

import nereid

_Vector = Annotated[np.ndarray, nereid.Tensor("float32", 8)]
_Matrix = Annotated[np.ndarray, nereid.Tensor("int32", 4, 4)]


class Sums(NamedTuple):
    OUTPUT0: _Matrix
    OUTPUT1: _Matrix


def _same(x: _Vector) -> _Vector:
    return x


@nereid.model(batch=True)
def mymodel(
    IMAGE: Annotated[np.ndarray, nereid.Tensor("float32", 3, -1, -1)],  # noqa: N803
) -> Annotated[np.ndarray, nereid.Tensor("float32", 3)]:
    mean: np.ndarray = IMAGE.mean(axis=(2, 3))
    return mean


@nereid.model
def add_sub(INPUT0: _Matrix, INPUT1: _Matrix) -> Sums:  # noqa: N803
    return Sums(INPUT0 + INPUT1, INPUT0 - INPUT1)


@nereid.model
def shaped(
    INPUT: Annotated[np.ndarray, nereid.Tensor("int32", -1, -1)],  # noqa: N803
) -> Annotated[np.ndarray, nereid.Tensor("int32", -1, -1)]:
    return INPUT


@nereid.model
def model_name(x: _Vector) -> Iterator[_Vector]:
    for _ in range(10):
        yield x


MODELS = (
    *(nereid.model(name=name)(_same) for name in ("simple", "inception_graphdef")),
    nereid.model(name="resnet50_libtorch")(_same),
    *(mymodel, add_sub, shaped, model_name),
)
