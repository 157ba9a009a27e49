"""A batch's members to the model's input arrays, and its output arrays to the members' answers.

Pure; tensor bytes become arrays here and nowhere else. A single member's tensors are viewed in
place, those of several are joined by one copy; outputs are copied once, into the answer frame.
One Python-level pass per member each way: this is the executor's share of a request's time.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from nereid.core import datatypes
from nereid.core.datatypes import BYTES
from nereid.core.errors import Internal, InvalidArgument, NereidError, Unimplemented
from nereid.core.messages import ErrorStatus, SharedMemory, error_status_of
from nereid.core.shapes import format_shape, shape_fits
from nereid.core.tensors import NUMPY_TYPE, Array, split_bytes, to_raw
from nereid.services.executor.batch.classification import classify
from nereid.services.executor.batch.request_plan import substitute
from nereid.services.executor.batch.responses import (
    Form,
    failure,
    prefixes,
    response_head,
    wire_response,
)
from nereid.shm.segments import THRESHOLD_BYTES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nereid.core.classification import Classification
    from nereid.pb import nereid_pb2 as pb
    from nereid.services.executor.batch.request_plan import Plan, Planner, Signature

# Raw bytes of one input, or the elements of a BYTES input.
Raw = bytes | memoryview | list[Any]
Piece = bytes | memoryview

# Opens a tensor in shared memory; puts outputs there.
View = Callable[["pb.SharedMemory"], memoryview]
Lend = Callable[[list[Piece]], list[SharedMemory] | None]

# A model's output shapes may vary without end.
MAX_FORMS = 256


class Gathered(NamedTuple):
    """A batch's members, sorted out."""

    # For each member its plan, or why it has none.
    outcomes: list[Plan | ErrorStatus]
    # The planned members' input tensors.
    tensors: list[list[Raw]]
    # The first plan (others have the same columns); None: there are only faults.
    first: Plan | None
    # All planned members' rows.
    rows: int
    # The outputs that any member wants: indices into the signature's, ascending, and names.
    outputs: tuple[int, ...]
    names: list[str]


def gather(
    planner: Planner, members: Sequence[pb.BatchMember], view: View | None = None
) -> Gathered:
    """Find each member's plan and tensors; a defective member is a fault and spares the others.

    view: opens tensors that lie in shared memory; None: nobody may send such here.

    Raises:
        Internal: there are several members, and the model does not batch.
    """
    signature = planner.signature
    known = planner.plans
    outcomes: list[Plan | ErrorStatus] = []
    tensors: list[list[Raw]] = []
    first: Plan | None = None
    rows = 0
    outputs: set[int] = set()
    for member in members:
        try:
            head = member.head
            plan = known.get(head) or planner.plan(head)
            payloads = member.payloads
            count = len(payloads)
            # Iterating over a repeated field costs three times as much as indexing it.
            raws: list[Raw] = (
                [payloads[0].inline]
                if count == 1
                else [payloads[place].inline for place in range(count)]
            )
            if [*map(len, raws)] != plan.sizes:
                # It has BYTES, or shared memory, or a wrong size.
                raws = _checked(signature, plan, payloads, view)
            if plan is not first:
                if first is None:
                    first = plan
                elif plan.columns != first.columns:
                    raise _unlike(signature)
                outputs.update(plan.outputs)
        except NereidError as error:
            outcomes.append(error_status_of(error))
            continue
        outcomes.append(plan)
        tensors.append(raws)
        rows += plan.rows
    if first is None:
        return Gathered(outcomes, tensors, None, 0, (), [])
    if not signature.batching and len(tensors) > 1:
        raise _unlike(signature)
    if len(outputs) == len(first.outputs):
        return Gathered(outcomes, tensors, first, rows, first.outputs, first.output_names)
    wanted = tuple(sorted(outputs))
    names = [signature.outputs[index].name for index in wanted]
    return Gathered(outcomes, tensors, first, rows, wanted, names)


def _unlike(signature: Signature) -> Internal:
    return Internal(
        f"a batch for model '{signature.model_name}' holds requests that cannot share one"
    )


def _checked(
    signature: Signature, plan: Plan, payloads: Sequence[pb.Payload], view: View | None
) -> list[Raw]:
    """The tensors of a member that needs a closer look."""
    if len(payloads) != len(plan.columns):
        raise Internal(
            f"a request for model '{signature.model_name}' has {len(plan.columns)} inputs "
            f"but {len(payloads)} payloads"
        )
    raws: list[Raw] = []
    for index, (column, payload) in enumerate(zip(plan.columns, payloads, strict=True)):
        raw: bytes | memoryview = payload.inline
        if payload.HasField("shared_memory"):
            if view is None:
                raise Unimplemented("this executor cannot read tensors from shared memory")
            raw = view(payload.shared_memory)
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
        elements = split_bytes(raw)
    except InvalidArgument as error:
        raise InvalidArgument(f"{error.message} {where}") from error
    if len(elements) != count:
        raise InvalidArgument(f"expected {count} string elements {where}, got {len(elements)}")
    if not signature.bytes_as_text:
        return elements
    try:
        return [element.decode() for element in elements]
    except UnicodeDecodeError as error:
        raise InvalidArgument(f"the backend takes UTF-8 text only {where}") from error


def stack(signature: Signature, gathered: Gathered) -> dict[str, Array]:
    """The model's input arrays; without a planned member there are none."""
    first, tensors = gathered.first, gathered.tensors
    if first is None:
        return {}
    joined = tensors[0] if len(tensors) == 1 else [_join(raws) for raws in zip(*tensors)]  # noqa: B905 - gather made them alike, and strict costs time
    inputs: dict[str, Array] = {}
    for column, raw in zip(first.columns, joined):  # noqa: B905 - likewise
        if isinstance(raw, list):
            array: Array = np.empty(len(raw), dtype=np.object_)
            array[:] = raw
        else:
            array = np.frombuffer(raw, column.dtype)
            if not array.flags.aligned:
                # Part of a larger body; model runtimes take any address for a good one.
                array = array.copy()
        shape = column.shape
        inputs[column.name] = array.reshape(
            (gathered.rows, *shape) if signature.batching else shape
        )
    return inputs


def _join(raws: tuple[Raw, ...]) -> Raw:
    if isinstance(raws[0], list):
        return list(chain.from_iterable(raws))
    return b"".join(raws)  # type: ignore[arg-type]  # a column is of one kind


def split(
    signature: Signature,
    gathered: Gathered,
    arrays: Sequence[Array],
    lend: Lend | None = None,
) -> list[Piece]:
    """The pieces of the Executed message that hold the answers, in the members' order.

    lend: puts an answer's outputs in shared memory, or says that they are to go inline.

    Raises:
        Internal: the model produced something else than the configuration says.
    """
    key = (gathered.outputs, _check(signature, gathered, arrays))
    views = [_row_bytes(array, gathered.rows) for array in arrays]
    pieces: list[Piece] = []
    append = pieces.append
    row = 0
    for plan in gathered.outcomes:
        if isinstance(plan, ErrorStatus):
            append(failure(plan))
            continue
        form = plan.forms.get(key) or _make_form(signature, plan, key)
        end = row + plan.rows
        if form.parts is None:
            rows = slice(row, end) if signature.batching else slice(None)
            raws: list[Piece] = [
                _raw(signature, plan, told, arrays[place][rows])
                for told, place in zip(plan.told, form.places, strict=True)
            ]
            append(wire_response(form.head, (lend and lend(raws)) or raws))
        elif form.size_bytes >= THRESHOLD_BYTES and (
            lent := lend and lend([_rows(views[place], row, end) for place in form.places])
        ):
            append(wire_response(form.head, lent))
        else:
            for prefix, place in form.parts:
                view, size = views[place]
                append(prefix)
                append(view[row * size : end * size])
        row = end
    return pieces


def _raw(
    signature: Signature, plan: Plan, told: tuple[int, Classification | None], rows: Array
) -> bytes:
    """The raw form of a member's share of an output: its classes, or all of it."""
    index, classes = told
    if classes is None:
        return to_raw(rows)
    labels = classes.labels
    if labels is None:
        labels = signature.labels.get(signature.outputs[index].name, ())
    shape = (plan.rows, prod(rows.shape[1:])) if signature.batching else (1, rows.size)
    return classify(rows.reshape(shape), classes.most, labels)


def _check(
    signature: Signature, gathered: Gathered, arrays: Sequence[Array]
) -> tuple[tuple[int, ...], ...]:
    """The shapes of the outputs' rows (without batching: of the outputs)."""
    names, rows = gathered.names, gathered.rows
    if len(arrays) != len(names):
        raise Internal(
            f"model '{signature.model_name}' produced {len(arrays)} outputs, not {len(names)}"
        )
    shapes = []
    for index, array in zip(gathered.outputs, arrays):  # noqa: B905 - just checked
        spec = signature.outputs[index]
        shape = array.shape
        dtype = array.dtype
        if dtype != NUMPY_TYPE[spec.datatype] and not (
            spec.datatype == BYTES and dtype.kind in "SU"
        ):
            raise Internal(
                f"output '{spec.name}' of model '{signature.model_name}' has data type '{dtype}', "
                f"expected {spec.datatype}"
            )
        if signature.batching:
            if not shape or shape[0] != rows:
                raise Internal(
                    f"output '{spec.name}' of model '{signature.model_name}' has shape "
                    f"{format_shape(shape)}, but the batch has size {rows}"
                )
            shape = shape[1:]
        shapes.append(shape)
    return tuple(shapes)


def _row_bytes(array: Array, rows: int) -> tuple[memoryview, int]:
    """An array's bytes in row-major order, and how many a row has; BYTES arrays have none."""
    if array.dtype.kind in "OSU":
        return memoryview(b""), 0
    return array.reshape(-1).view(np.uint8).data, array.nbytes // rows if rows else 0


def _rows(view_and_size: tuple[memoryview, int], row: int, end: int) -> memoryview:
    view, size = view_and_size
    return view[row * size : end * size]


def _make_form(
    signature: Signature, plan: Plan, key: tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]
) -> Form:
    """The answers to this plan's requests, given these shapes of the batch's outputs' rows."""
    outputs, row_shapes = key
    places = tuple(outputs.index(index) for index, _ in plan.told)
    shapes, sizes = [], []
    for (index, classes), place in zip(plan.told, places, strict=True):
        spec, row = signature.outputs[index], row_shapes[place]
        model_dims = spec.dims if spec.reshape is None else spec.reshape
        if not shape_fits(row, model_dims):
            raise Internal(
                f"output '{spec.name}' of model '{signature.model_name}' has shape "
                f"{format_shape(row)}, expected {format_shape(model_dims)}"
            )
        shape = row if spec.reshape is None else substitute(spec.dims, spec.reshape, row)
        if classes is not None:
            shape = (min(classes.most, prod(row)),)
        shapes.append((plan.rows, *shape) if signature.batching else shape)
        size = datatypes.byte_size(spec.datatype, row) if classes is None else None
        sizes.append(None if size is None else plan.rows * size)
    head = response_head(signature, plan.told, shapes)
    fixed = [size for size in sizes if size is not None]
    parts = None
    if sizes and len(fixed) == len(sizes):
        parts = tuple(zip(prefixes(head, fixed), places, strict=True))
    if len(plan.forms) >= MAX_FORMS:
        plan.forms.clear()
    form = plan.forms[key] = Form(head, places, parts, sum(fixed))
    return form
