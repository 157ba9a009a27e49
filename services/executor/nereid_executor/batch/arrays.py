"""Conversion of a batch's requests to input arrays, and of output arrays to responses.

Outputs are copied once, and inputs only if there are several members.
"""

# layout: compiled

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from math import prod
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from nereid.backends import TensorParts
from nereid.core.errors import Internal, InvalidArgument, NereidError, Unimplemented
from nereid.core.tensors import datatypes
from nereid.core.tensors.byte_elements import split_bytes
from nereid.core.tensors.datatypes import BYTES
from nereid.core.tensors.shapes import format_shape, shape_fits, substitute
from nereid.core.tensors.tensors import NUMPY_TYPE, Array, to_raw
from nereid.core.wire.messages import ErrorStatus, error_status_of
from nereid.core.wire.response_prefixes import response_prefixes
from nereid.shm.reference import SharedMemory
from nereid.shm.segments import SHM_THRESHOLD_BYTES
from nereid_executor.batch.classification import check_classes, classify
from nereid_executor.batch.responses import (
    ResponseLayout,
    encode_response,
    error_response,
    response_head,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nereid.core.tensors.classification import Classification
    from nereid.pb import nereid_pb2 as pb
    from nereid_executor.batch.batch_reader import BatchRequest
    from nereid_executor.batch.request_plan import (
        Column,
        LayoutKey,
        LoneOutputs,
        Plan,
        Planner,
        Signature,
        TensorSpec,
    )

_new_tuple: Final = tuple.__new__
# Objects to make in one step. Between steps, other threads may run.
_SLICE_ELEMENTS: Final = 16384

# The raw bytes of one input, or the elements of a BYTES input.
Raw = bytes | memoryview | list[Any]
Piece = bytes | memoryview

# View returns the bytes of a tensor in shared memory. Lend copies outputs to shared memory, or
# returns `None` if they are sent inline.
View = Callable[["pb.SharedMemory"], memoryview]
Lend = Callable[[list[Piece]], list[SharedMemory] | None]


class GatheredBatch(NamedTuple):
    """The members of a batch, checked and planned."""

    outcomes: list[Plan | ErrorStatus]
    # One list for each member that has a plan.
    tensors: list[list[Raw]]
    # The first plan, whose columns all plans share; `None` if every member has an error.
    first: Plan | None
    # The sum over all members with a plan.
    rows: int
    # The outputs that any member requests: ascending indices into the signature's, and names.
    outputs: tuple[int, ...]
    names: list[str]


def gather_members(
    planner: Planner, members: Sequence[BatchRequest], view: View | None = None
) -> GatheredBatch:
    """Find each member's plan and tensors. A malformed member does not affect others.

    view: `None` refuses tensors in shared memory. Raises Internal if the model does not batch.
    """
    return _gather_lone(planner.plans, members) or _gather_all(planner, members, view)


def _gather_all(
    planner: Planner, members: Sequence[BatchRequest], view: View | None
) -> GatheredBatch:
    signature = planner.signature
    plans = planner.plans
    outcomes: list[Plan | ErrorStatus] = []
    tensors: list[list[Raw]] = []
    first: Plan | None = None
    rows = 0
    outputs: set[int] = set()
    for member in members:
        try:
            head = member.head
            plan = plans.get(head) or planner.plan_request(head)
            raws: list[Raw] = member.tensors
            if member.is_shared or [*map(len, raws)] != plan.sizes:
                # The member has BYTES, tensors in shared memory, or a tensor with a wrong size.
                raws = _checked_tensors(signature, plan, member.tensors, view)
            if plan is not first:
                if first is None:
                    first = plan
                elif plan.columns != first.columns:
                    raise _mixed_batch(signature)
                outputs.update(plan.outputs)
        except NereidError as error:
            outcomes.append(error_status_of(error))
            continue
        outcomes.append(plan)
        tensors.append(raws)
        rows += plan.rows
    if first is None:
        return GatheredBatch(outcomes, tensors, None, 0, (), [])
    if not signature.batching and len(tensors) > 1:
        raise _mixed_batch(signature)
    if len(outputs) == len(first.outputs):
        return GatheredBatch(outcomes, tensors, first, rows, first.outputs, first.output_names)
    wanted = tuple(sorted(outputs))
    names = [signature.outputs[index].name for index in wanted]
    return GatheredBatch(outcomes, tensors, first, rows, wanted, names)


def _gather_lone(
    plans: Mapping[bytes, Plan], members: Sequence[BatchRequest]
) -> GatheredBatch | None:
    """Gather a batch of one member with inline tensors of known sizes; `None` for any other."""
    if len(members) != 1:
        return None
    member = members[0]
    plan, tensors = plans.get(member.head), member.tensors
    if plan is None or member.is_shared or [*map(len, tensors)] != plan.sizes:
        return None
    # Building the tuple directly is faster than calling the class.
    values = ([plan], [tensors], plan, plan.rows, plan.outputs, plan.output_names)
    return _new_tuple(GatheredBatch, values)


def fail_members(gathered: GatheredBatch, errors: Mapping[int, ErrorStatus]) -> GatheredBatch:
    """Return the batch with errors (by member index) in place of some members' plans."""
    outcomes: list[Plan | ErrorStatus] = []
    tensors: list[list[Raw]] = []
    planned = iter(gathered.tensors)
    for place, outcome in enumerate(gathered.outcomes):
        raws = None if isinstance(outcome, ErrorStatus) else next(planned)
        if raws is not None and place not in errors:
            tensors.append(raws)
        outcomes.append(outcome if raws is None else errors.get(place, outcome))
    plans = [outcome for outcome in outcomes if not isinstance(outcome, ErrorStatus)]
    if not plans:
        return GatheredBatch(outcomes, tensors, None, 0, (), [])
    rows = sum(plan.rows for plan in plans)
    return gathered._replace(outcomes=outcomes, tensors=tensors, first=plans[0], rows=rows)


def _mixed_batch(signature: Signature) -> Internal:
    return Internal(
        f"a batch for model '{signature.model_name}' holds requests that cannot share one"
    )


def _checked_tensors(
    signature: Signature, plan: Plan, tensors: Sequence[Any], view: View | None
) -> list[Raw]:
    if len(tensors) != len(plan.columns):
        raise Internal(
            f"a request for model '{signature.model_name}' has {len(plan.columns)} inputs "
            f"but {len(tensors)} payloads"
        )
    raws: list[Raw] = []
    for index, (column, tensor) in enumerate(zip(plan.columns, tensors, strict=True)):
        raw: bytes | memoryview
        if isinstance(tensor, bytes):
            raw = tensor
        elif view is None:
            raise Unimplemented("this executor cannot read tensors from shared memory")
        else:
            raw = view(tensor)
        if column.datatype == BYTES:
            raws.append(_elements(signature, column.name, plan.counts[index], raw))
        elif len(raw) != plan.sizes[index]:
            raise InvalidArgument(
                f"input byte size mismatch for input '{column.name}' for model "
                f"'{signature.model_name}'. Expected {plan.sizes[index]}, got {len(raw)}"
            )
        else:
            raws.append(raw)
    return raws


def _elements(signature: Signature, name: str, count: int, raw: bytes | memoryview) -> list[Any]:
    where = f"for inference input '{name}' for model '{signature.model_name}'"
    try:
        elements: list[Any] = split_bytes(raw)
    except InvalidArgument as error:
        raise InvalidArgument(f"{error.message} {where}") from error
    if len(elements) != count:
        raise InvalidArgument(f"expected {count} string elements {where}, got {len(elements)}")
    if not signature.bytes_as_text:
        return elements
    errors = "surrogateescape" if signature.escapes_bytes else "strict"
    try:
        # The bytes of each slice are freed before the next slice is decoded.
        for start in range(0, count, _SLICE_ELEMENTS):
            some = slice(start, start + _SLICE_ELEMENTS)
            elements[some] = [element.decode("utf-8", errors) for element in elements[some]]
    except UnicodeDecodeError as undecodable:
        raise InvalidArgument(f"the backend takes UTF-8 text only {where}") from undecodable
    return elements


def stack_inputs(signature: Signature, gathered: GatheredBatch) -> dict[str, Array]:
    """Return the model's input arrays by name. At least one member must have a plan."""
    first, tensors = gathered.first, gathered.tensors
    assert first is not None
    joined = tensors[0] if len(tensors) == 1 else [join_rows(raws) for raws in zip(*tensors)]  # noqa: B905 - all have the same columns, and strict costs time
    inputs: dict[str, Array] = {}
    for column, raw in zip(first.columns, joined):  # noqa: B905 - likewise
        shape = column.shape
        inputs[column.name] = flat_array(column, raw).reshape(
            (gathered.rows, *shape) if signature.batching else shape
        )
    return inputs


def input_parts(signature: Signature, gathered: GatheredBatch) -> dict[str, TensorParts]:
    """Return the inputs by name, as one piece per member, for a model without strings."""
    first = gathered.first
    assert first is not None
    inputs: dict[str, TensorParts] = {}
    for column, raws in zip(first.columns, zip(*gathered.tensors, strict=True), strict=True):
        shape = (gathered.rows, *column.shape) if signature.batching else column.shape
        inputs[column.name] = TensorParts(raws, shape, column.dtype)
    return inputs


def flat_array(column: Column, raw: Raw) -> Array:
    """Return the elements of one column as a one-dimensional array."""
    if isinstance(raw, list):
        array: Array = np.empty(len(raw), dtype=np.object_)
        for start in range(0, len(raw), _SLICE_ELEMENTS):
            end = start + _SLICE_ELEMENTS
            array[start:end] = raw[start:end]
        return array
    array = np.frombuffer(raw, column.dtype)
    # Model runtimes assume aligned addresses, and a view into a larger body may not be aligned.
    return array if array.flags.aligned else array.copy()


def join_rows(raws: tuple[Raw, ...]) -> Raw:
    """Join the tensors of several members for one column."""
    if isinstance(raws[0], list):
        return list(chain.from_iterable(raws))
    return b"".join(raws)  # type: ignore[arg-type]  # a column is of one kind


def split_outputs(
    signature: Signature,
    gathered: GatheredBatch,
    arrays: Sequence[Array],
    lend: Lend | None = None,
) -> list[Piece]:
    """Return the members' responses in order, as pieces of an Executed message.

    lend: `None` sends all outputs inline. Raises Internal if the outputs do not fit the
    configuration.
    """
    plan_of_lone = gathered.first if len(gathered.outcomes) == 1 else None
    if plan_of_lone is not None:
        known = _known_pieces(plan_of_lone.lone_outputs, arrays)
        if known is not None:
            return known
    key = (gathered.outputs, check_outputs(signature, gathered, arrays))
    views = [_row_bytes(array, gathered.rows) for array in arrays]
    pieces: list[Piece] = []
    append = pieces.append
    row = 0
    for plan in gathered.outcomes:
        if isinstance(plan, ErrorStatus):
            append(error_response(plan))
            continue
        end = row + plan.rows
        try:
            layout = plan.layouts.get(key) or make_layout(signature, plan, key)
        except InvalidArgument as error:
            append(error_response(error_status_of(error)))
            row = end
            continue
        if layout.parts is None:
            rows = [_some_rows(signature, array, row, end) for array in arrays]
            append(encode_rows(signature, plan, layout, rows, lend))
        elif layout.size_bytes >= SHM_THRESHOLD_BYTES and (
            lent := lend and lend([_rows(views[index], row, end) for index in layout.indices])
        ):
            append(encode_response(layout.head, lent))
        else:
            for prefix, index in layout.parts:
                view, size = views[index]
                append(prefix)
                append(view[row * size : end * size])
            if plan is plan_of_lone and layout.size_bytes < SHM_THRESHOLD_BYTES:
                forms = [(array.shape, array.dtype) for array in arrays]
                plan.lone_outputs = forms, layout.parts
        row = end
    return pieces


def _known_pieces(known: LoneOutputs | None, arrays: Sequence[Array]) -> list[Piece] | None:
    """Return a lone request's response if its outputs are like the last ones; they were checked."""
    if known is None or known[0] != [(array.shape, array.dtype) for array in arrays]:
        return None
    pieces: list[Piece] = []
    for prefix, index in known[1]:
        pieces.append(prefix)
        pieces.append(arrays[index].tobytes())
    return pieces


def encode_rows(
    signature: Signature,
    plan: Plan,
    layout: ResponseLayout,
    rows: Sequence[Array],
    lend: Lend | None,
) -> bytes:
    """Return the response with a member's rows of the batch's outputs, as an Executed message."""
    raws: list[Piece] = [
        _output_bytes(signature, plan, output, rows[index])
        for output, index in zip(plan.response_outputs, layout.indices, strict=True)
    ]
    return encode_response(layout.head, (lend and lend(raws)) or raws)


def _some_rows(signature: Signature, array: Array, row: int, end: int) -> Array:
    return np.atleast_1d(array)[row:end] if signature.batching else array


def _output_bytes(
    signature: Signature, plan: Plan, output: tuple[int, Classification | None], rows: Array
) -> bytes:
    index, classes = output
    if classes is None:
        return to_raw(rows)
    labels = classes.labels
    if labels is None:
        labels = signature.labels.get(signature.outputs[index].name, ())
    shape = (plan.rows, prod(rows.shape[1:])) if signature.batching else (1, rows.size)
    return classify(rows.reshape(shape), classes.class_count, labels)


def check_outputs(
    signature: Signature, gathered: GatheredBatch, arrays: Sequence[Array]
) -> tuple[tuple[int, ...], ...]:
    """Return the shape of each output's row; of the whole output if the model does not batch.

    As on Triton, only the number of rows is checked, and a scalar is an output of one row. Raises
    Internal if outputs do not fit, Unimplemented for too few rows.
    """
    names, rows = gathered.names, gathered.rows
    if len(arrays) != len(names):
        raise Internal(
            f"model '{signature.model_name}' produced {len(arrays)} outputs, not {len(names)}"
        )
    shapes = []
    for index, array in zip(gathered.outputs, arrays):  # noqa: B905 - just checked
        spec = signature.outputs[index]
        shape = array.shape
        if array.dtype != NUMPY_TYPE[spec.datatype]:
            check_datatype(signature, spec, array)
        if signature.batching:
            if shape[:1] != (rows,) and (shape or rows != 1):
                raise _wrong_rows(signature, spec, shape, rows)
            shape = shape[1:]
        shapes.append(shape)
    return tuple(shapes)


def _wrong_rows(
    signature: Signature, spec: TensorSpec, shape: tuple[int, ...], rows: int
) -> NereidError:
    if shape and shape[0] < rows:
        return Unimplemented(
            f"failed to split the output tensor '{spec.name}' in responses: expected batch size of "
            f"atleast {rows} in model output, got {shape[0]}"
        )
    return Internal(
        f"output '{spec.name}' of model '{signature.model_name}' has shape "
        f"{format_shape(shape)}, but the batch has size {rows}"
    )


def check_datatype(signature: Signature, spec: TensorSpec, array: Array) -> None:
    """Raise Internal if an output's datatype differs from the configuration's."""
    dtype = array.dtype
    if dtype != NUMPY_TYPE[spec.datatype] and not (spec.datatype == BYTES and dtype.kind in "SU"):
        raise Internal(
            f"output '{spec.name}' of model '{signature.model_name}' has data type '{dtype}', "
            f"expected {spec.datatype}"
        )


def _row_bytes(array: Array, rows: int) -> tuple[memoryview, int]:
    """Return an array's row-major bytes and the bytes of a row; none and 0 for strings."""
    if array.dtype.kind in "OSU":
        return memoryview(b""), 0
    return array.reshape(-1).view(np.uint8).data, array.nbytes // rows if rows else 0


def _rows(view_and_size: tuple[memoryview, int], row: int, end: int) -> memoryview:
    view, size = view_and_size
    return view[row * size : end * size]


def make_layout(signature: Signature, plan: Plan, key: LayoutKey) -> ResponseLayout:
    """Return the layout of responses to requests with this plan; remember it in the plan.

    key: the batch's outputs, and the shape of a row of each. An output keeps a shape that does not
    fit its `reshape`. Raises InvalidArgument for too many classes.
    """
    outputs, row_shapes = key
    indices = tuple(outputs.index(output) for output, _ in plan.response_outputs)
    shapes, sizes = [], []
    for (output, classes), index in zip(plan.response_outputs, indices, strict=True):
        spec, row = signature.outputs[output], row_shapes[index]
        shape = row
        if spec.reshape is not None and shape_fits(row, spec.reshape):
            shape = substitute(spec.dims, spec.reshape, row)
        if classes is not None:
            elements = prod(row)
            shape = (min(classes.class_count, elements),)
            check_classes(spec.name, elements, shape[0] * (plan.rows if signature.batching else 1))
        shapes.append((plan.rows, *shape) if signature.batching else shape)
        size = datatypes.byte_size(spec.datatype, row) if classes is None else None
        sizes.append(None if size is None else plan.rows * size)
    head = response_head(signature, plan.response_outputs, shapes)
    fixed = [size for size in sizes if size is not None]
    parts = None
    if sizes and len(fixed) == len(sizes):
        parts = tuple(zip(response_prefixes(head, fixed), indices, strict=True))
    return plan.layouts.remember(key, ResponseLayout(head, indices, parts, sum(fixed)))
