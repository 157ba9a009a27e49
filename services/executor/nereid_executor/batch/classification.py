"""The classification extension: an output's largest elements as `value:index[:label]`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast

import numpy as np

from nereid.core.errors import InvalidArgument
from nereid.core.tensors.byte_elements import join_bytes
from nereid.core.tensors.classification import read_labels
from nereid.core.tensors.datatypes import BYTES
from nereid.core.tensors.tensors import NUMPY_TYPE
from nereid.core.wire.messages import ErrorStatus, error_status_of
from nereid.pb import kserve_pb2

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from nereid.backends import Response
    from nereid.core.tensors.classification import Classification
    from nereid.core.tensors.tensors import Array
    from nereid.pb import model_config_pb2

_UNORDERED = frozenset({BYTES, "BF16"})
# Making a class's text holds the interpreter's lock, which all models share.
_MAX_CLASSES: Final = 1 << 18
# As in Triton.
_MAX_ROW_ELEMENTS: Final = 1_000_000
# If less than 1/_FEW_OF of the elements is wanted, selecting is much faster than sorting.
_FEW_OF: Final = 16


def classify(rows: Array, most: int, labels: Sequence[str]) -> bytes:
    """Return each row's largest elements as BYTES. Equal elements keep their order; NaN is last."""
    # The keys are flipped, for a descending order. Integers are complemented, since the least one
    # has no negation.
    flipped = -rows if rows.dtype.kind == "f" else ~rows
    if most * _FEW_OF < rows.shape[1]:
        chosen = [_smallest(row, most) for row in flipped]
        order = np.array(chosen, np.intp).reshape(len(rows), most)
    else:
        order = np.argsort(flipped, axis=1, kind="stable")[:, :most]
    values = np.take_along_axis(rows, order, axis=1)
    template = "%f:%d" if rows.dtype.kind == "f" else "%d:%d"
    texts = []
    for indices, row in zip(order.tolist(), values.tolist(), strict=True):
        for index, value in zip(indices, row, strict=True):
            text = template % (value, index)
            label = labels[index] if index < len(labels) else ""
            texts.append(f"{text}:{label}" if label else text)
    return join_bytes(texts)


def check_classes(name: str, row_elements: int, count: int) -> None:
    """Raise InvalidArgument if a response cannot have this many classes of this output.

    row_elements: elements of each row; count: classes of all rows.
    """
    if row_elements > _MAX_ROW_ELEMENTS:
        raise InvalidArgument("classification output tensor too large", accepted=True)
    if count > _MAX_CLASSES:
        raise InvalidArgument(
            f"output '{name}' has {count} classes, a response has at most {_MAX_CLASSES}; ask for"
            " fewer by 'classification'",
            accepted=True,
        )


def _smallest(row: Array, most: int) -> Array:
    last = np.partition(row, most - 1)[most - 1]
    if last != last:  # noqa: PLR0124 - NaN alone differs from itself
        return np.argsort(row, kind="stable")[:most]
    below, equal = np.flatnonzero(row < last), np.flatnonzero(row == last)
    chosen = np.concatenate((below, equal[: most - below.size]))
    return chosen[np.argsort(row[chosen], kind="stable")]


class Classes:
    """Computes classes from the outputs of one RequestModel."""

    def __init__(self, config: model_config_pb2.ModelConfig, model_path: Path) -> None:
        self._labels = read_labels(config, model_path)
        self._batching = config.max_batch_size > 0

    def classify_response(
        self, response: Response, wanted: Mapping[str, Classification]
    ) -> Response:
        """Return the response with the wanted classes in place of outputs."""
        if not response.head:
            return response
        head = kserve_pb2.ModelInferResponse.FromString(response.head)
        tensors = list(response.tensors)
        for index, output in enumerate([*head.outputs]):
            which = wanted.get(output.name)
            if which is None:
                continue
            dtype = NUMPY_TYPE.get(output.datatype)
            if dtype is None or output.datatype in _UNORDERED:
                text = "class result not available for output due to unsupported type"
                error_status = ErrorStatus(
                    InvalidArgument.code, f"{text} '{output.datatype}'", accepted=True
                )
                return response._replace(error_status=error_status, head=b"", tensors=())
            # A request for classes gets no output buffer in shared memory, so the outputs are
            # inline.
            elements = np.frombuffer(cast("bytes | memoryview", tensors[index]), dtype)
            count = output.shape[0] if self._batching and output.shape else 1
            rows = elements.reshape(count, elements.size // count if count else 0)
            kept = min(which.class_count, rows.shape[1])
            try:
                check_classes(output.name, rows.shape[1], kept * count)
            except InvalidArgument as error:
                error_status = error_status_of(error)
                return response._replace(error_status=error_status, head=b"", tensors=())
            labels = which.labels
            if labels is None:
                labels = self._labels.get(output.name, ())
            classes = classify(rows, which.class_count, labels)
            described = output
            if which.beside:
                tensors.append(classes)
                described = head.outputs.add(name=output.name)
            else:
                tensors[index] = classes
            described.datatype = BYTES
            described.shape[:] = [count, kept] if self._batching else [kept]
        return response._replace(head=head.SerializeToString(), tensors=tensors)
