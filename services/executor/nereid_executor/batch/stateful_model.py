"""Implicit state of models that execute arrays.

The rows that a model writes to a state's output are an input for the sequences' next requests.
"""

from __future__ import annotations

import logging
from collections import deque
from operator import is_
from typing import TYPE_CHECKING, Final

import numpy as np

from nereid.backends import capabilities_of
from nereid.core.errors import NereidError
from nereid.core.tensors.tensors import from_raw, to_raw
from nereid.core.wire.messages import ErrorStatus, error_status_of
from nereid.pb import nereid_pb2 as pb
from nereid_executor.batch.arrays import fail_members, gather_members
from nereid_executor.batch.batch_reader import request_of
from nereid_executor.batch.sequence_states import SequenceStates, has_flag, state_specs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from nereid.backends import InstanceSpec, Model
    from nereid.core.tensors.tensors import Array
    from nereid_executor.batch.arrays import GatheredBatch, View
    from nereid_executor.batch.request_plan import Planner, Signature
    from nereid_executor.batch.sequence_states import StateSpec

    StackInputs = Callable[[Signature, GatheredBatch], dict[str, Array]]

_log = logging.getLogger(__name__)

# Batches whose states an instance keeps. Sequences mostly come in the same two batches in turn: one
# executes while the clients of the other have their responses.
_MAX_KEPT: Final = 2


def read_row(spec: StateSpec, tensor: pb.StateTensor) -> Array:
    """Return the row of a state in a message; raise InvalidArgument if it is malformed."""
    return np.array(from_raw(tensor.data, spec.datatype, tuple(tensor.shape)))


def _write_row(row: Array) -> pb.StateTensor:
    return pb.StateTensor(shape=row.shape, data=to_raw(row))


class _KeptBatch:
    """The states that a model wrote for a batch, as rows of the arrays that it returned.

    If the same sequences come together again, the arrays are the next input, without a copy.
    """

    __slots__ = ("_rows", "_states", "arrays")

    def __init__(self, arrays: Sequence[Array], states: Sequence[list[Array]]) -> None:
        self.arrays = arrays
        self._states = states
        self._rows = [[array[index] for array in arrays] for index in range(len(states))]
        for state, rows in zip(states, self._rows, strict=True):
            state[:] = rows

    def has(self, states: Sequence[list[Array]]) -> bool:
        """Return whether these are the states of this batch, unchanged and in the same order."""
        return len(states) == len(self._states) and all(
            state is own and all(map(is_, state, rows))
            for state, own, rows in zip(states, self._states, self._rows, strict=True)
        )

    def release(self) -> None:
        """Copy the rows that are states, since one row would keep its whole array in memory."""
        for state, rows in zip(self._states, self._rows, strict=True):
            if len(state) == len(rows) and all(map(is_, state, rows)):
                state[:] = map(np.array, rows)


class StatefulModel:
    """A Model that executes batches with the states of their sequences.

    The instance's thread calls begin(), execute() and returned_states(), for one batch at a time.
    """

    def __init__(
        self,
        spec: InstanceSpec,
        model: Model,
        planner: Planner,
        stack: StackInputs,
        view: View | None,
    ) -> None:
        """Raise InvalidArgument if the initial value of a state cannot be read."""
        self._name = spec.config.name
        self._model = model
        self._planner = planner
        self._stack_inputs = stack
        self._view = view
        self._batching = spec.config.max_batch_size > 0
        self._specs = state_specs(spec.config, spec.version_path.parent)
        initial = [state.initial for state in self._specs]
        self._table = SequenceStates(self._name, self._specs, initial, read_row, _write_row)
        # States of the current batch's members. `_planned` has only the members with a plan.
        self._states: list[list[Array]] = []
        self._leaves_arrays = capabilities_of(model).leaves_arrays
        self._kept: deque[_KeptBatch] = deque()
        # Key: a state's input. Value: memory for its stacked rows.
        self._buffers: dict[str, Array] = {}
        self._planned: list[tuple[pb.BatchMember, list[Array]]] = []

    def begin(self, members: Sequence[pb.BatchMember], gathered: GatheredBatch) -> GatheredBatch:
        """Get the members' states; return the batch, with errors for members without a state."""
        for requests in self._table.replays(members):
            for request in requests:
                self._replay(request)
        self._states = states = []
        lost: dict[int, ErrorStatus] = {}
        for place, member in enumerate(members):
            try:
                states.append(self._table.begin(member))
            except NereidError as error:
                states.append([])
                lost[place] = error_status_of(error)
        if lost:
            gathered = fail_members(gathered, lost)
        self._planned = [
            (member, state)
            for outcome, member, state in zip(gathered.outcomes, members, states, strict=True)
            if not isinstance(outcome, ErrorStatus)
        ]
        return gathered

    def execute(self, inputs: dict[str, Array], outputs: Sequence[str]) -> Sequence[Array]:
        """Execute a batch as Model.execute() does, with the states of its sequences."""
        states = [spec.output for spec in self._specs if spec.output not in outputs]
        names = [*outputs, *states]
        befores = [state for _, state in self._planned]
        shapes = [tuple(row.shape for row in state) for state in befores]
        alike = len({*shapes}) == 1
        if alike:
            arrays = self._run(inputs, names, befores)
        else:
            arrays = self._run_by_shape(inputs, names, befores, shapes)
        by_name = dict(zip(names, arrays, strict=True))
        self._replace(befores, [by_name[spec.output] for spec in self._specs], alike=alike)
        for member, state in self._planned:
            if has_flag(member, "sequence_end"):
                self._table.end(member.sequence_slot, state)
        return list(arrays[: len(outputs)])

    def _replace(
        self, states: Sequence[list[Array]], afters: Sequence[Array], *, alike: bool
    ) -> None:
        if not self._batching:
            states[0][:] = afters if self._leaves_arrays else map(np.array, afters)
        elif not self._leaves_arrays or not alike:
            for index, state in enumerate(states):
                # The row is copied, so that it does not keep the whole array of the batch.
                state[:] = [np.array(after[index]) for after in afters]
        elif len(states) == 1:
            states[0][:] = [after[0] for after in afters]
        else:
            self._kept.append(_KeptBatch(afters, states))
            if len(self._kept) > _MAX_KEPT:
                self._kept.popleft().release()

    def forget_sequences(self) -> None:
        """Forget all sequences."""
        self._table.clear()
        self._kept.clear()

    def export_states(self, slots: Iterable[int], reply: pb.Executed) -> None:
        """Add the states of slots to a reply, as far as they fit, and forget them."""
        self._table.export_states(slots, reply)

    def returned_states(self, members: Sequence[pb.BatchMember]) -> pb.Executed:
        """Return a reply that has only the states that the members of an executed batch want."""
        reply = pb.Executed()
        states, self._states = self._states, []
        wanted = (
            (member.sequence_slot, state)
            for member, state in zip(members, states, strict=False)
            if member.returns_state and state
        )
        self._table.return_states(wanted, reply)
        return reply

    def _replay(self, request: pb.BatchMember) -> None:
        try:
            gathered = gather_members(self._planner, [request_of(request)], self._view)
            # A malformed request was also malformed the first time, and left no state.
            if gathered.first is not None:
                self._planned = [(request, self._table.begin(request))]
                inputs = self._stack_inputs(self._planner.signature, gathered)
                self.execute(inputs, gathered.names)
        except Exception as error:
            self._table.lose(request.sequence_slot)
            _log.error(
                "a request of a sequence of model '%s' failed when it was replayed: %r",
                self._name,
                error,
            )

    def _run(
        self, inputs: dict[str, Array], names: list[str], befores: Sequence[list[Array]]
    ) -> Sequence[Array]:
        kept = next((batch.arrays for batch in self._kept if batch.has(befores)), None)
        given = dict(inputs)
        for position, spec in enumerate(self._specs):
            rows = [before[position] for before in befores]
            if not self._batching:
                given[spec.input] = rows[0]
            elif kept is not None:
                given[spec.input] = kept[position]
            elif len(rows) == 1 and self._leaves_arrays:
                given[spec.input] = rows[0][np.newaxis]
            else:
                given[spec.input] = self._stack_rows(spec, rows)
        return self._model.execute(given, names)

    def _stack_rows(self, spec: StateSpec, rows: Sequence[Array]) -> Array:
        """Return an array of these rows.

        In new arrays, large states would get new memory from the system each time.
        """
        if not self._leaves_arrays:
            return np.stack(rows)
        count, shape = len(rows), rows[0].shape
        buffer = self._buffers.get(spec.input)
        if buffer is None or len(buffer) < count or buffer.shape[1:] != shape:
            buffer = self._buffers[spec.input] = np.empty((count, *shape), rows[0].dtype)
        return np.stack(rows, out=buffer[:count])

    def _run_by_shape(
        self,
        inputs: dict[str, Array],
        names: list[str],
        befores: Sequence[list[Array]],
        shapes: Sequence[tuple[tuple[int, ...], ...]],
    ) -> list[Array]:
        groups: dict[tuple[tuple[int, ...], ...], list[int]] = {}
        for index, shape in enumerate(shapes):
            groups.setdefault(shape, []).append(index)
        rows: list[list[Array]] = [[] for _ in befores]
        for indices in groups.values():
            part = {name: array[indices] for name, array in inputs.items()}
            for array in self._run(part, names, [befores[index] for index in indices]):
                for index, row in zip(indices, array, strict=True):
                    rows[index].append(row)
        columns = zip(*rows, strict=True)
        return [_stack(column) for column in columns]


def _stack(rows: Sequence[Array]) -> Array:
    if len({row.shape for row in rows}) == 1:
        return np.stack(rows)
    array = np.empty(len(rows), np.object_)
    array[:] = rows
    return array
