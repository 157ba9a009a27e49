"""Plans for executing requests with the same head, cached by the head.

The scheduler has validated heads. The checks here only prevent a wrong result if services disagree.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING, Final, NamedTuple

from google.protobuf.message import DecodeError

from nereid.bounded_cache import BoundedCache
from nereid.core.errors import Internal
from nereid.core.tensors.classification import Classification, requested_classifications
from nereid.core.tensors.datatypes import BYTES, NAME_OF_CONFIG_NUMBER
from nereid.core.tensors.shapes import VARIABLE, format_shape, shape_fits, substitute
from nereid.core.tensors.tensors import NUMPY_TYPE
from nereid.model_config.padding import read_padding
from nereid.model_config.sequence_controls import control_datatype
from nereid.pb import kserve_pb2

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np

    from nereid.backends import ModelDescription
    from nereid.model_config.padding import Padding
    from nereid.pb import model_config_pb2
    from nereid_executor.batch.responses import ResponseLayout

# Heads differ by batch size and shape, which clients may vary without end.
MAX_PLANS: Final = 1024
# A model's output shapes may vary from batch to batch.
MAX_LAYOUTS: Final = 256


# Shape of a column whose requests may have different shapes.
FLAT: Final = (VARIABLE,)

# A batch's outputs, and the shape of a row of each output.
LayoutKey = tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]
LoneOutputs = tuple[
    list[tuple[tuple[int, ...], "np.dtype[np.generic]"]], tuple[tuple[bytes, int], ...]
]


class TensorSpec(NamedTuple):
    """A tensor of the configuration. reshape: its shape in the model, if that differs."""

    name: str
    datatype: str
    dims: tuple[int, ...]
    reshape: tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class Signature:
    """The tensors of a loaded model, according to its configuration."""

    model_name: str
    model_version: str
    batching: bool
    bytes_as_text: bool
    inputs: dict[str, TensorSpec]
    outputs: tuple[TensorSpec, ...]
    # Maps an output to the names of its classes.
    labels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    # Inputs that the model gets as one row, which has the elements of all requests.
    ragged: frozenset[str] = frozenset()
    padding: Padding | None = None
    # True if bytes that are not UTF-8 become surrogates in text.
    escapes_bytes: bool = False


class Column(NamedTuple):
    """One input tensor of a batch, apart from its number of rows."""

    name: str
    datatype: str
    dtype: np.dtype[np.generic]
    # Shape of one row as the model gets it, with -1 for padded dimensions; FLAT for a ragged input.
    shape: tuple[int, ...]


@dataclass(slots=True, eq=False)
class Plan:
    """The plan for executing requests with one head."""

    rows: int
    # Requests may share a batch if their columns are equal.
    columns: tuple[Column, ...]
    # Bytes of each input; `None` for BYTES, whose size varies.
    sizes: list[int | None]
    counts: list[int]
    # Key: an input. Value: the shape of its rows in the request, before padding or flattening.
    shapes: dict[str, tuple[int, ...]]
    # Ascending indices into the signature's outputs, and the names of these outputs.
    outputs: tuple[int, ...]
    output_names: list[str]
    # The outputs in the response's order: the index, and the classes if they replace the tensor.
    response_outputs: tuple[tuple[int, Classification | None], ...] = ()
    layouts: BoundedCache[LayoutKey, ResponseLayout] = field(
        default_factory=lambda: BoundedCache(MAX_LAYOUTS)
    )
    # Bytes of all inputs; 0 if one of them is BYTES or empty.
    fixed_bytes: int = 0
    # Outputs of the last lone request, if they were small and no BYTES: shapes and datatypes, and
    # the layout's `parts`.
    lone_outputs: LoneOutputs | None = None


def signature_of(
    config: model_config_pb2.ModelConfig,
    version: int,
    description: ModelDescription,
    *,
    bytes_as_text: bool,
    labels: Mapping[str, tuple[str, ...]] | None = None,
) -> Signature:
    """Return the signature of a model whose configuration fits its model file."""
    described = {tensor.name: tensor.dims for tensor in (*description.inputs, *description.outputs)}
    batching = config.max_batch_size > 0

    def spec(tensor: model_config_pb2.ModelInput | model_config_pb2.ModelOutput) -> TensorSpec:
        reshape = tuple(tensor.reshape.shape) if tensor.HasField("reshape") else None
        if not batching and described.get(tensor.name) == ():
            # A configuration can only write a scalar with dims of 1.
            reshape = ()
        datatype = NAME_OF_CONFIG_NUMBER[tensor.data_type]
        return TensorSpec(tensor.name, datatype, tuple(tensor.dims), reshape)

    return Signature(
        model_name=config.name,
        model_version=str(version),
        batching=batching,
        bytes_as_text=bytes_as_text,
        inputs={tensor.name: spec(tensor) for tensor in config.input} | _controls(config),
        outputs=tuple(spec(tensor) for tensor in config.output),
        labels=labels or {},
        ragged=frozenset(tensor.name for tensor in config.input if tensor.allow_ragged_batch),
        padding=read_padding(config),
    )


def _controls(config: model_config_pb2.ModelConfig) -> dict[str, TensorSpec]:
    return {
        tensor.name: TensorSpec(tensor.name, control_datatype(control), (1,), None)
        for tensor in config.sequence_batching.control_input
        for control in tensor.control
    }


class Planner:
    """The plans of one loaded model. Only its instance's thread uses them."""

    def __init__(self, signature: Signature, max_plans: int = MAX_PLANS) -> None:
        self.signature = signature
        # Code on the hot path reads this attribute directly.
        self.plans: BoundedCache[bytes, Plan] = BoundedCache(max_plans)

    def plan_request(self, head: bytes) -> Plan:
        """Return the plan for a head; raise Internal if the head does not fit the model."""
        plan = self.plans.get(head)
        if plan is None:
            plan = self.plans.remember(head, make_plan(self.signature, head))
        return plan


def make_plan(signature: Signature, head: bytes) -> Plan:
    """Make the plan for a head; raise Internal in the same cases as plan_request()."""
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
    shapes = {column.name: column.shape for column in columns}
    if signature.ragged or signature.padding is not None:
        columns = _shared_columns(signature, columns, shapes)
    outputs = _outputs(signature, [output.name for output in request.outputs])
    names = [signature.outputs[index].name for index in outputs]
    responded = _response_outputs(signature, outputs, requested_classifications(request.outputs))
    plan = Plan(rows, tuple(columns), sizes, counts, shapes, outputs, names, responded)
    fixed = [size for size in sizes if size]
    plan.fixed_bytes = sum(fixed) if len(fixed) == len(sizes) else 0
    return plan


def _shared_columns(
    signature: Signature, columns: list[Column], shapes: dict[str, tuple[int, ...]]
) -> list[Column]:
    """Return the columns with the shapes that a batch has in common: ragged ones are flat."""
    shared = shapes if signature.padding is None else signature.padding.open_shapes(shapes)
    return [
        column._replace(shape=FLAT if column.name in signature.ragged else shared[column.name])
        for column in columns
    ]


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


def _response_outputs(
    signature: Signature, outputs: tuple[int, ...], classes: Mapping[str, Classification]
) -> tuple[tuple[int, Classification | None], ...]:
    instead: list[tuple[int, Classification | None]] = []
    beside: list[tuple[int, Classification | None]] = []
    for index in outputs:
        wanted = classes.get(signature.outputs[index].name)
        if wanted is not None and wanted.beside:
            beside.append((index, wanted))
            wanted = None
        instead.append((index, wanted))
    return (*instead, *beside)


def _outputs(signature: Signature, names: list[str]) -> tuple[int, ...]:
    known = {spec.name: index for index, spec in enumerate(signature.outputs)}
    if not names:
        return tuple(known.values())
    unknown = [name for name in names if name not in known]
    if unknown:
        raise Internal(f"unexpected output '{unknown[0]}' for model '{signature.model_name}'")
    return tuple(sorted({known[name] for name in names}))
