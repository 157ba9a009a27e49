"""Batch inputs (`batch_input`): they tell a model how a ragged input divides into requests."""

from __future__ import annotations

from itertools import accumulate
from math import prod
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from nereid.core.errors import Internal
from nereid.core.tensors.datatypes import NAME_OF_CONFIG_NUMBER
from nereid.core.tensors.tensors import NUMPY_TYPE, Array
from nereid.pb import model_config_pb2

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nereid_executor.batch.request_plan import Plan

    # For each request: its number of rows, and the shape of one row.
    _Items = Sequence[tuple[int, tuple[int, ...]]]

_Kind = model_config_pb2.BatchInput.Kind


class BatchInput(NamedTuple):
    """One batch_input of a configuration. kind is a number of BatchInput.Kind."""

    kind: int
    targets: tuple[str, ...]
    source: str
    dtype: np.dtype[np.generic]

    def arrays(self, plans: Sequence[Plan]) -> dict[str, Array]:
        """Return the inputs by name; raise Internal if the requests lack the source input."""
        try:
            items = [(plan.rows, plan.shapes[self.source]) for plan in plans]
        except KeyError:
            raise Internal(
                f"batch input '{self.targets[0]}' needs input '{self.source}', which the requests "
                "of the batch do not have"
            ) from None
        array = np.asarray(_VALUES[self.kind](items), self.dtype)
        return dict.fromkeys(self.targets, array)


def batch_inputs_of(config: model_config_pb2.ModelConfig) -> tuple[BatchInput, ...]:
    """Return the batch inputs of a valid configuration."""
    return tuple(
        BatchInput(
            batch_input.kind,
            tuple(batch_input.target_name),
            batch_input.source_input[0],
            NUMPY_TYPE[NAME_OF_CONFIG_NUMBER[batch_input.data_type]],
        )
        for batch_input in config.batch_input
        if batch_input.target_name
    )


def _counts(items: _Items) -> list[int]:
    return [rows * prod(shape) for rows, shape in items]


def _accumulated(items: _Items) -> list[int]:
    return [*accumulate(_counts(items))]


def _accumulated_with_zero(items: _Items) -> list[int]:
    return [*accumulate(_counts(items), initial=0)]


def _largest_as_shape(items: _Items) -> Array:
    # The model uses only the array's shape.
    return np.zeros(max(_counts(items)))


def _shapes(items: _Items) -> Array:
    rows = [shape for rows, shape in items for _ in range(rows)]
    # The rank is that of the configuration's dims, even if no request has any row.
    return np.asarray(rows, np.int64).reshape(len(rows), len(items[0][1]))


def _flat_shapes(items: _Items) -> Array:
    return _shapes(items).reshape(-1)


_VALUES: dict[int, Callable[[_Items], list[int] | Array]] = {
    _Kind.BATCH_ELEMENT_COUNT: _counts,
    _Kind.BATCH_ACCUMULATED_ELEMENT_COUNT: _accumulated,
    _Kind.BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO: _accumulated_with_zero,
    _Kind.BATCH_MAX_ELEMENT_COUNT_AS_SHAPE: _largest_as_shape,
    _Kind.BATCH_ITEM_SHAPE: _shapes,
    _Kind.BATCH_ITEM_SHAPE_FLATTEN: _flat_shapes,
}
