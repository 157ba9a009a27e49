"""The classification extension: an output's best elements as texts, and the labels of a model.

Pure but for reading label files. A class is told as `value:index` or `value:index:label`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import numpy as np

from nereid.datatypes import BYTES
from nereid.errors import Internal, InvalidArgument
from nereid.messages import Fault
from nereid.pb import kserve_pb2
from nereid.tensor import NUMPY_TYPE, join_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from nereid.pb import model_config_pb2
    from nereid.tensor import Array
    from services.executor.backends import Collected, Response

_UNORDERED = frozenset({BYTES, "BF16"})


def read_labels(
    config: model_config_pb2.ModelConfig, model_path: Path
) -> dict[str, tuple[str, ...]]:
    """The labels of each output that has a label file, a label a line.

    Raises:
        Internal: a label file cannot be read.
    """
    labels = {}
    for output in config.output:
        if not output.label_filename:
            continue
        path = model_path / output.label_filename
        try:
            text = path.read_text(encoding="utf-8", errors="replace")
        except OSError as error:
            raise Internal(f"failed to open text file for read {path}: {error.strerror}") from error
        labels[output.name] = tuple(text.split("\n"))
    return labels


def classify(rows: Array, most: int, labels: Sequence[str]) -> bytes:
    """The raw BYTES tensor of each row's largest elements, at most so many, largest first.

    rows has two dimensions; equal elements keep their order, and NaN comes last.
    """
    # Largest first: of integers by complement, since the least of them has no negative.
    flipped = -rows if rows.dtype.kind == "f" else ~rows
    order = np.argsort(flipped, axis=1, kind="stable")[:, :most]
    values = np.take_along_axis(rows, order, axis=1)
    form = "%f:%d" if rows.dtype.kind == "f" else "%d:%d"
    told = []
    for indices, row in zip(order.tolist(), values.tolist(), strict=True):
        for index, value in zip(indices, row, strict=True):
            text = form % (value, index)
            label = labels[index] if index < len(labels) else ""
            told.append(f"{text}:{label}" if label else text)
    return join_bytes(told)


class Classes:
    """Makes classes of the outputs of one model that answers requests one by one."""

    def __init__(self, config: model_config_pb2.ModelConfig, model_path: Path) -> None:
        self._labels = read_labels(config, model_path)
        self._batching = config.max_batch_size > 0

    def told(self, collected: Collected, wanted: Mapping[int, Mapping[str, int]]) -> Collected:
        """With classes in place of outputs; wanted: by member, of which at most how many."""
        responses = [
            self._response(each, wanted[each.member])
            if each.head and each.member in wanted
            else each
            for each in collected.responses
        ]
        return collected._replace(responses=responses)

    def _response(self, response: Response, wanted: Mapping[str, int]) -> Response:
        head = kserve_pb2.ModelInferResponse.FromString(response.head)
        tensors = list(response.tensors)
        for place, output in enumerate(head.outputs):
            most = wanted.get(output.name)
            if most is None:
                continue
            dtype = NUMPY_TYPE.get(output.datatype)
            if dtype is None or output.datatype in _UNORDERED:
                text = "class result not available for output due to unsupported type"
                fault = Fault(InvalidArgument.code, f"{text} '{output.datatype}'", late=True)
                return response._replace(fault=fault, head=b"", tensors=())
            # Whoever wants classes gave the model no room in shared memory for its outputs.
            elements = np.frombuffer(cast("bytes | memoryview", tensors[place]), dtype)
            count = output.shape[0] if self._batching and output.shape else 1
            rows = elements.reshape(count, elements.size // count if count else 0)
            tensors[place] = classify(rows, most, self._labels.get(output.name, ()))
            kept = min(most, rows.shape[1])
            output.datatype = BYTES
            output.shape[:] = [count, kept] if self._batching else [kept]
        return response._replace(head=head.SerializeToString(), tensors=tensors)
