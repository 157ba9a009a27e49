"""Implicit state: tensors that a stateful model gets from its sequence's previous request.

The configuration names pairs of an input and an output; what the model writes to the output is the
input of the sequence's next request. Kept by the number of the sequence's slot at the instance, so
that sequences that end without a word leave nothing behind. Arrays are rows, without a batch
dimension.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
from google.protobuf.message import DecodeError

from nereid.core.codecs import read_parameters
from nereid.core.correlation_ids import as_unsigned
from nereid.core.datatypes import BYTES, NAME_OF_CONFIG_NUMBER
from nereid.core.errors import Internal, InvalidArgument, NereidError, Unavailable
from nereid.core.messages import error_status_of
from nereid.core.tensors import NUMPY_TYPE, Array, from_raw, to_raw
from nereid.pb import nereid_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from nereid.backends import Model
    from nereid.core.correlation_ids import CorrelationId
    from nereid.core.messages import ErrorStatus
    from nereid.pb import model_config_pb2

    # Runs a request, whose response is dropped; raises if it fails.
    Replay = Callable[[pb.BatchMember], None]

    State = model_config_pb2.ModelSequenceBatching.State
    InitialState = model_config_pb2.ModelSequenceBatching.InitialState

_log = logging.getLogger(__name__)

_DIRECTORY = "initial_state"
# Of requests that run again: no sequence's. Those below it are free as well.
REPLAY_SLOT: Final = (1 << 32) - 1
# States beside responses, or of slots that are exported: the scheduler asks for the others again.
MAX_STATE_BYTES: Final = 32 << 20


class StateSpec(NamedTuple):
    """One pair, and what the input is on a sequence's first request."""

    input: str
    output: str
    datatype: str
    initial: Array


class SequenceStates:
    """The states of one instance's sequences; used by its instance's thread alone."""

    def __init__(self, config: model_config_pb2.ModelConfig, model_path: Path) -> None:
        """model_path: the model's folder.

        Raises:
            InvalidArgument: a state's initial value cannot be had.
        """
        self._model_name = config.name
        self._batching = config.max_batch_size > 0
        self._specs = state_specs(config, model_path)
        # By slot number: one row for each pair.
        self._rows: dict[int, list[Array]] = {}
        # Of sequences that come with the current batch, by their requests' places in it: two of
        # them may have one slot, the second one after the first one's END. None: it failed.
        self._restored: dict[int, list[Array] | None] = {}

    def execute(
        self,
        model: Model,
        inputs: dict[str, Array],
        outputs: Sequence[str],
        members: Sequence[tuple[int, pb.BatchMember]],
    ) -> list[Array]:
        """Model.execute, with the states of these members, which have a row each; by their places
        in the batch.
        """
        # In order: of two sequences that share a slot, the first one ends in this batch.
        befores = [self._before(place, member) for place, member in members]
        shapes = [tuple(row.shape for row in rows) for rows in befores]
        states = [spec.output for spec in self._specs if spec.output not in outputs]
        names = [*outputs, *states]
        if len({*shapes}) == 1:
            arrays = self._run(model, inputs, names, befores)
        else:
            arrays = self._run_by_shape(model, inputs, names, befores, shapes)
        by_name = dict(zip(names, arrays, strict=True))
        for index, (place, member) in enumerate(members):
            self._restored.pop(place, None)
            self._remember(member, index, by_name)
        return list(arrays[: len(outputs)])

    def _before(self, place: int, member: pb.BatchMember) -> list[Array]:
        """The rows that a member's request begins with."""
        slot = member.sequence_slot
        if slot and not has_flag(member, "sequence_start"):
            if member.HasField("restore"):
                state = self._restored.get(place)
            else:
                state = self._rows.get(slot)
            if state is None:  # a replay's alone: of the others restore() has the errors
                raise Internal("a request that runs again has no state")
            return state
        rows = [spec.initial for spec in self._specs]
        if slot:
            # If this request fails, the next one must not find an earlier sequence's state.
            self._rows[slot] = rows
        return rows

    def _remember(self, member: pb.BatchMember, index: int, by_name: dict[str, Array]) -> None:
        slot = member.sequence_slot
        if not slot:
            return
        if has_flag(member, "sequence_end"):
            self._rows.pop(slot, None)
            return
        # Copies: a row must not keep its batch's whole array.
        self._rows[slot] = [
            np.array(by_name[spec.output][index] if self._batching else by_name[spec.output])
            for spec in self._specs
        ]

    # ---- from instance to instance

    def restore(self, members: Sequence[pb.BatchMember], replay: Replay) -> dict[int, ErrorStatus]:
        """Begin the sequences that come from another instance: their states, and the requests that
        these lack. Of a sequence that fails here nothing is kept.

        Returns the errors of members whose sequences have no state, by their places in the batch:
        these must not be executed.
        """
        self._restored.clear()
        lost: dict[int, ErrorStatus] = {}
        for place, member in enumerate(members):
            if member.HasField("restore"):
                try:
                    self._restored[place] = self._restore_one(member.restore, replay)
                except Exception as error:
                    self._restored[place] = None
                    reason = error.message if isinstance(error, NereidError) else repr(error)
                    _log.error(
                        "the state of a sequence of model '%s' cannot be restored: %s",
                        self._model_name,
                        reason,
                    )
                    if not has_flag(member, "sequence_start"):
                        lost[place] = self._lost(member, "it could not be restored")
            elif (
                member.sequence_slot
                and member.sequence_slot not in self._rows
                and not has_flag(member, "sequence_start")
            ):
                lost[place] = self._lost(member, "its instance does not have it")
        return lost

    def _lost(self, member: pb.BatchMember, cause: str) -> ErrorStatus:
        return error_status_of(state_lost(self._model_name, member, cause))

    def _restore_one(self, restore: pb.SequenceRestore, replay: Replay) -> list[Array]:
        if restore.state:
            self._rows[REPLAY_SLOT] = self._read_rows(restore.state)
        else:
            self._rows[REPLAY_SLOT] = [spec.initial for spec in self._specs]
        for request in restore.requests:
            request.sequence_slot = REPLAY_SLOT
            replay(request)
        return self._rows.pop(REPLAY_SLOT)

    def write_states(self, batch: pb.Batch, executed: pb.Executed) -> None:
        """After a batch: add the states that it asks for, as far as they fit. Exported ones are
        forgotten.
        """
        for place, rows in self._restored.items():
            # Its request was not executed.
            member = batch.members[place]
            if not has_flag(member, "sequence_end"):
                self._rows.pop(member.sequence_slot, None)
                if rows is not None:
                    self._rows[member.sequence_slot] = rows
        size_bytes = 0
        for slot in batch.exported_slots:
            state = self._write_rows(slot)
            size_bytes += len(state)
            if size_bytes > MAX_STATE_BYTES and executed.states:
                return
            executed.states.add(slot=slot, state=state)
            self._rows.pop(slot, None)
        for member in batch.members:
            if member.returns_state and member.sequence_slot in self._rows:
                state = self._write_rows(member.sequence_slot)
                size_bytes += len(state)
                if size_bytes <= MAX_STATE_BYTES:
                    executed.states.add(slot=member.sequence_slot, state=state)

    def _write_rows(self, slot: int) -> bytes:
        """Empty: there is no state of this slot."""
        message = pb.StateTensors()
        for row in self._rows.get(slot, ()):
            message.tensors.add(shape=row.shape, data=to_raw(row))
        return message.SerializeToString()

    def _read_rows(self, state: bytes) -> list[Array]:
        try:
            tensors = pb.StateTensors.FromString(state).tensors
        except DecodeError as error:
            raise Internal("it cannot be read") from error
        if len(tensors) != len(self._specs):
            raise Internal(f"it has {len(tensors)} tensors instead of {len(self._specs)}")
        return [
            np.array(from_raw(tensor.data, spec.datatype, tuple(tensor.shape)))
            for tensor, spec in zip(tensors, self._specs, strict=True)
        ]

    def _run(
        self,
        model: Model,
        inputs: dict[str, Array],
        names: list[str],
        befores: Sequence[list[Array]],
    ) -> Sequence[Array]:
        given = dict(inputs)
        for position, spec in enumerate(self._specs):
            rows = [before[position] for before in befores]
            given[spec.input] = np.stack(rows) if self._batching else rows[0]
        return model.execute(given, names)

    def _run_by_shape(
        self,
        model: Model,
        inputs: dict[str, Array],
        names: list[str],
        befores: Sequence[list[Array]],
        shapes: Sequence[tuple[tuple[int, ...], ...]],
    ) -> list[Array]:
        """States of variable shape: members with equal shapes run together."""
        groups: dict[tuple[tuple[int, ...], ...], list[int]] = {}
        for index, shape in enumerate(shapes):
            groups.setdefault(shape, []).append(index)
        rows: list[list[Array]] = [[] for _ in befores]
        for indices in groups.values():
            part = {name: array[indices] for name, array in inputs.items()}
            for array in self._run(model, part, names, [befores[index] for index in indices]):
                for index, row in zip(indices, array, strict=True):
                    rows[index].append(row)
        columns = zip(*rows, strict=True)
        return [_stack(column) for column in columns]


def state_specs(config: model_config_pb2.ModelConfig, model_path: Path) -> list[StateSpec]:
    """A model's states. Raises InvalidArgument if an initial value cannot be had."""
    return [_spec(config.name, state, model_path) for state in config.sequence_batching.state]


def _stack(rows: Sequence[Array]) -> Array:
    """An array of rows; of objects, where the rows differ in shape: only states may."""
    if len({row.shape for row in rows}) == 1:
        return np.stack(rows)
    array = np.empty(len(rows), np.object_)
    array[:] = rows
    return array


def has_flag(member: pb.BatchMember, name: str) -> bool:
    """Whether a parameter of a request is true."""
    return name in member.parameters and member.parameters[name].bool_param


def state_lost(model: str, member: pb.BatchMember, cause: str) -> Unavailable:
    """A request's error where its instance lacks its sequence's state."""
    return Unavailable(
        f"the state of sequence {_sequence_id(member)} of model '{model}' is lost: {cause}; begin"
        " it again with a request that has the START flag",
        accepted=True,
    )


def _sequence_id(member: pb.BatchMember) -> CorrelationId:
    correlation_id = read_parameters(member.parameters).get("sequence_id", 0)
    return as_unsigned(correlation_id) if isinstance(correlation_id, int) else str(correlation_id)


def _spec(model: str, state: State, model_path: Path) -> StateSpec:
    datatype = NAME_OF_CONFIG_NUMBER[state.data_type]
    initial: Array | None = None
    for each in state.initial_state:
        initial = _initial(model, state, each, model_path / _DIRECTORY)
    if initial is None:
        # The model has to look at START.
        initial = _zeros(datatype, [max(dim, 1) for dim in state.dims])
    return StateSpec(state.input_name, state.output_name, datatype, initial)


def _initial(model: str, state: State, initial: InitialState, directory: Path) -> Array:
    datatype = NAME_OF_CONFIG_NUMBER[initial.data_type]
    if initial.WhichOneof("state_data") != "data_file":
        return _zeros(datatype, initial.dims)
    try:
        raw = (directory / initial.data_file).read_bytes()
    except OSError as error:
        raise InvalidArgument(
            f"failed to read initial state '{initial.data_file}' of state '{state.input_name}' for"
            f" model '{model}': {error.strerror}"
        ) from error
    try:
        return from_raw(raw, datatype, tuple(initial.dims))
    except InvalidArgument as error:
        raise InvalidArgument(
            f"initial state '{initial.data_file}' of state '{state.input_name}' for model"
            f" '{model}': {error.message}"
        ) from error


def _zeros(datatype: str, dims: Sequence[int]) -> Array:
    if datatype == BYTES:
        array: Array = np.empty(tuple(dims), np.object_)
        array.fill(b"")
        return array
    return np.zeros(tuple(dims), NUMPY_TYPE[datatype])
