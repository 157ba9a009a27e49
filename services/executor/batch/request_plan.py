"""What a request's head asks of a loaded model, worked out once and remembered by its bytes.

Pure. The scheduler has validated every head; what is checked here only keeps a mistake between the
services from becoming a wrong answer.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING, NamedTuple

from google.protobuf.message import DecodeError

from nereid.core.classification import Classification, classifications
from nereid.core.datatypes import BYTES, NAME_OF_CONFIG_NUMBER
from nereid.core.errors import Internal
from nereid.core.shapes import VARIABLE, format_shape, shape_fits
from nereid.core.tensors import NUMPY_TYPE
from nereid.pb import kserve_pb2

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np

    from nereid.backends import ModelDescription
    from nereid.pb import model_config_pb2
    from nereid.services.executor.batch.responses import Form

# Heads differ by batch size and shape; a client that varies them without end starts afresh.
MAX_PLANS = 1024


class TensorSpec(NamedTuple):
    """A tensor of the configuration; reshape is the model's own shape of one request's row."""

    name: str
    datatype: str
    dims: tuple[int, ...]
    reshape: tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class Signature:
    """What the configuration of a loaded model says of its tensors."""

    model_name: str
    model_version: str
    batching: bool
    bytes_as_text: bool
    inputs: dict[str, TensorSpec]
    outputs: tuple[TensorSpec, ...]
    # By output: what its classes are called.
    labels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


class Column(NamedTuple):
    """One input tensor of a batch: all but its number of rows."""

    name: str
    datatype: str
    dtype: np.dtype[np.generic]
    # Of one row, as the model wants it.
    shape: tuple[int, ...]


@dataclass(slots=True, eq=False)
class Plan:
    """How requests with one and the same head are executed."""

    # How many rows of the batch such a request fills.
    rows: int
    # Requests may share a batch if these are equal.
    columns: tuple[Column, ...]
    # What each payload measures; None where only its content tells (BYTES).
    sizes: list[int | None]
    # Elements of each input.
    counts: list[int]
    # Indices into the signature's outputs, ascending, and their names.
    outputs: tuple[int, ...]
    output_names: list[str]
    # What is told, in the answer's order: outputs' indices, and how if not as they are.
    told: tuple[tuple[int, Classification | None], ...] = ()
    # The forms of answers, by the batch's outputs and the shapes of their rows.
    forms: dict[tuple[tuple[int, ...], tuple[tuple[int, ...], ...]], Form] = field(
        default_factory=dict
    )


def signature_of(
    config: model_config_pb2.ModelConfig,
    version: int,
    description: ModelDescription,
    *,
    bytes_as_text: bool,
    labels: Mapping[str, tuple[str, ...]] | None = None,
) -> Signature:
    """The signature of a model whose configuration matches its file."""
    found = {tensor.name: tensor.dims for tensor in (*description.inputs, *description.outputs)}
    batching = config.max_batch_size > 0

    def spec(tensor: model_config_pb2.ModelInput | model_config_pb2.ModelOutput) -> TensorSpec:
        reshape = tuple(tensor.reshape.shape) if tensor.HasField("reshape") else None
        if not batching and found.get(tensor.name) == ():
            # A scalar, which a configuration can only write as dims of ones.
            reshape = ()
        datatype = NAME_OF_CONFIG_NUMBER[tensor.data_type]
        return TensorSpec(tensor.name, datatype, tuple(tensor.dims), reshape)

    return Signature(
        model_name=config.name,
        model_version=str(version),
        batching=batching,
        bytes_as_text=bytes_as_text,
        inputs={tensor.name: spec(tensor) for tensor in config.input},
        outputs=tuple(spec(tensor) for tensor in config.output),
        labels=labels or {},
    )


class Planner:
    """The plans of one loaded model; used by its instance's thread alone."""

    def __init__(self, signature: Signature) -> None:
        self.signature = signature
        # Read directly on the hot path.
        self.plans: dict[bytes, Plan] = {}

    def plan(self, head: bytes) -> Plan:
        """The plan for this head.

        Raises:
            Internal: the scheduler sent what it should have refused.
        """
        plan = self.plans.get(head)
        if plan is None:
            if len(self.plans) >= MAX_PLANS:
                self.plans.clear()
            plan = self.plans[head] = make_plan(self.signature, head)
        return plan


def make_plan(signature: Signature, head: bytes) -> Plan:
    """The plan for a head; raises Internal as Planner.plan does."""
    try:
        request = kserve_pb2.ModelInferRequest.FromString(head)
    except DecodeError as error:
        raise Internal("a batch member's head is no ModelInferRequest") from error
    rows = _rows(signature, request)
    columns, sizes, counts = [], [], []
    for tensor in request.inputs:
        column, count = _column(signature, tensor)
        columns.append(column)
        counts.append(count)
        sizes.append(None if column.datatype == BYTES else count * column.dtype.itemsize)
    outputs = _outputs(signature, [output.name for output in request.outputs])
    names = [signature.outputs[index].name for index in outputs]
    told = _told(signature, outputs, classifications(request.outputs))
    return Plan(rows, tuple(columns), sizes, counts, outputs, names, told)


def _rows(signature: Signature, request: kserve_pb2.ModelInferRequest) -> int:
    if not signature.batching or not request.inputs:
        return 1
    rows = {tensor.shape[0] if tensor.shape else -1 for tensor in request.inputs}
    if len(rows) != 1 or min(rows) < 0:
        raise Internal(f"the inputs of a request for '{signature.model_name}' differ in batch size")
    return rows.pop()


def _column(
    signature: Signature, tensor: kserve_pb2.ModelInferRequest.InferInputTensor
) -> tuple[Column, int]:
    spec = signature.inputs.get(tensor.name)
    if spec is None or spec.datatype != tensor.datatype:
        raise Internal(
            f"unexpected input '{tensor.name}' of datatype '{tensor.datatype}' "
            f"for model '{signature.model_name}'"
        )
    shape = tuple(tensor.shape)
    row = shape[1:] if signature.batching else shape
    count = prod(shape)
    if min(shape, default=0) < 0 or not shape_fits(row, spec.dims):
        raise Internal(
            f"unexpected shape {format_shape(shape)} of input '{tensor.name}' "
            f"for model '{signature.model_name}'"
        )
    inner = row if spec.reshape is None else substitute(spec.reshape, spec.dims, row)
    return Column(spec.name, spec.datatype, NUMPY_TYPE[spec.datatype], inner), count


def _told(
    signature: Signature, outputs: tuple[int, ...], classes: Mapping[str, Classification]
) -> tuple[tuple[int, Classification | None], ...]:
    told: list[tuple[int, Classification | None]] = []
    beside: list[tuple[int, Classification | None]] = []
    for index in outputs:
        wanted = classes.get(signature.outputs[index].name)
        if wanted is not None and wanted.beside:
            beside.append((index, wanted))
            wanted = None
        told.append((index, wanted))
    return (*told, *beside)


def _outputs(signature: Signature, names: list[str]) -> tuple[int, ...]:
    known = {spec.name: index for index, spec in enumerate(signature.outputs)}
    if not names:
        return tuple(known.values())
    unknown = [name for name in names if name not in known]
    if unknown:
        raise Internal(f"unexpected output '{unknown[0]}' for model '{signature.model_name}'")
    return tuple(sorted({known[name] for name in names}))


def substitute(into: Sequence[int], dims: Sequence[int], shape: Sequence[int]) -> tuple[int, ...]:
    """Put the sizes that shape has where dims are variable into the variable places of another."""
    sizes = iter(size for size, dim in zip(shape, dims, strict=True) if dim == VARIABLE)
    return tuple(next(sizes, -1) if dim == VARIABLE else dim for dim in into)
