"""Rows of the tensors between steps: conditions read them, and divide and join requests by them."""

from __future__ import annotations

from math import isnan
from typing import TYPE_CHECKING, Any

from nereid.core.errors import InvalidArgument
from nereid.core.tensors.byte_elements import Buffer, join_bytes, split_bytes
from nereid.core.tensors.datatypes import BYTES
from nereid.core.tensors.scalars import read_scalars
from nereid.core.tensors.shapes import format_shape
from nereid.shm.mappings import view
from nereid.shm.reference import SharedMemory
from nereid_scheduler.versions.ensembles.graphs.step_validation import default_tensor
from nereid_scheduler.versions.ensembles.step_tensors import Tensor

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from nereid.core.wire.messages import Payload
    from nereid.pb.model_config_pb2 import ModelConfig
    from nereid_scheduler.versions.ensembles.graphs.graph import Plan, Step
    from nereid_scheduler.versions.model_version import ModelVersion


class TensorRows:
    """Rows of one request's tensors; implements `graph.Rows`. Tensors are copied, not shared."""

    __slots__ = ("_batch_size", "_config", "_defaults", "_find_model", "_plan")

    def __init__(
        self,
        config: ModelConfig,
        plan: Plan,
        defaults: Mapping[str, Any],
        find_model: Callable[[Step], ModelVersion],
        batch_size: int,
    ) -> None:
        self._config = config
        self._plan = plan
        self._defaults = defaults
        self._find_model = find_model
        self._batch_size = batch_size

    def read(self, name: str, tensor: Tensor | None) -> Sequence[float]:
        """Return the value of each row of a condition's tensor; may raise SegmentLostError."""
        if tensor is None:
            raise InvalidArgument(f"tensor '{name}' of a condition was not given")
        values = read_scalars(_bytes_of(tensor.payload), tensor.datatype)
        if len(values) != (tensor.shape[0] if tensor.batched else 1) or not values:
            raise InvalidArgument(
                f"tensor '{name}' of a condition must have one element"
                f"{' in each row' if tensor.batched else ''} but has the shape"
                f" {format_shape(tensor.shape)}"
            )
        if any(map(isnan, values)):
            raise InvalidArgument(f"tensor '{name}' of a condition is not a number")
        return values

    def default(self, name: str, rows: Sequence[int] | None) -> Tensor:
        """Return the default of a tensor, in each of these rows; `None` means all."""
        step = self._plan.producers[name][0]
        key = next(key for key, tensor in step.output_map if tensor == name)
        model = self._find_model(step).config.proto
        made = default_tensor(self._defaults[name], name, self._config, model, key)
        if not made.batched:
            return Tensor(made.datatype, made.shape, made.raw)
        count = self._batch_size if rows is None else len(rows)
        return Tensor(made.datatype, (count, *made.shape), made.raw * count, batched=True)

    def select(self, tensor: Tensor, rows: Sequence[int]) -> Tensor:
        """Return the tensor with only these rows."""
        if self._config.model_transaction_policy.decoupled:
            raise InvalidArgument(
                "conditions differ between rows of a request, which a decoupled ensemble cannot"
                " divide"
            )
        if not tensor.batched:
            raise InvalidArgument(
                "conditions differ between rows of a request, but a tensor of shape"
                f" {format_shape(tensor.shape)} has no batch dimension to divide"
            )
        pieces = _row_bytes(tensor)
        if max(rows) >= len(pieces):
            raise InvalidArgument(
                "conditions differ between rows of a request, but a tensor of shape"
                f" {format_shape(tensor.shape)} has fewer rows"
            )
        return tensor._replace(
            shape=(len(rows), *tensor.shape[1:]),
            payload=b"".join([pieces[row] for row in rows]),
            lease=None,
            classes=tensor.classes and self.select(tensor.classes, rows),
        )

    def join(
        self, name: str, parts: Sequence[tuple[Sequence[int], Tensor | None]]
    ) -> Tensor | None:
        """Return an output of a divided request, its rows in their order."""
        given = [(rows, tensor) for rows, tensor in parts if tensor is not None]
        if not given:
            return None
        first = given[0][1]
        kinds = {(tensor.datatype, tensor.shape[1:], tensor.batched) for _, tensor in given}
        if len(given) < len(parts) or len(kinds) > 1 or not first.batched:
            shapes = ", ".join(
                "none" if tensor is None else f"{tensor.datatype} {format_shape(tensor.shape)}"
                for _, tensor in parts
            )
            raise InvalidArgument(
                f"conditions differ between rows of a request, and output '{name}' of these rows"
                f" does not fit together: {shapes}"
            )
        pieces: dict[int, bytes | memoryview] = {}
        for rows, tensor in given:
            pieces.update(zip(rows, _row_bytes(tensor), strict=True))
        classes = [(rows, tensor.classes) for rows, tensor in given]
        return first._replace(
            shape=(len(pieces), *first.shape[1:]),
            payload=b"".join([pieces[row] for row in sorted(pieces)]),
            lease=None,
            classes=first.classes and self.join(name, classes),
        )


def _bytes_of(payload: Payload) -> Buffer:
    return view(payload) if isinstance(payload, SharedMemory) else payload


def _row_bytes(tensor: Tensor) -> list[bytes | memoryview]:
    raw, count = memoryview(_bytes_of(tensor.payload)), tensor.shape[0]
    if tensor.datatype == BYTES:
        elements = split_bytes(raw)
        size = len(elements) // count
        return [join_bytes(elements[row * size : (row + 1) * size]) for row in range(count)]
    size = len(raw) // count
    return [raw[row * size : (row + 1) * size] for row in range(count)]
