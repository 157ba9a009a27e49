"""Implicit state: tensors that a stateful model gets from its sequence's previous request.

The next sequence in a slot replaces the state of a sequence without an END flag.
"""

from __future__ import annotations

import logging
from itertools import zip_longest
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, TypeVar

import numpy as np
from google.protobuf.message import DecodeError

from nereid.core.correlation_ids import as_unsigned
from nereid.core.errors import Internal, InvalidArgument, NereidError, Unavailable
from nereid.core.files.regular_files import read_regular_file
from nereid.core.tensors.datatypes import BYTES, NAME_OF_CONFIG_NUMBER
from nereid.core.tensors.tensors import NUMPY_TYPE, Array, from_raw
from nereid.core.wire.codecs import read_parameters
from nereid.model_config.validation.costs import MAX_TENSOR_BYTES
from nereid.pb import nereid_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from nereid.core.correlation_ids import CorrelationId
    from nereid.pb import model_config_pb2

    State = model_config_pb2.ModelSequenceBatching.State
    InitialState = model_config_pb2.ModelSequenceBatching.InitialState

_log = logging.getLogger(__name__)

_DIRECTORY = "initial_state"
# Highest slot number. Replays use it and the numbers just below; no sequence has them.
_REPLAY_SLOT: Final = (1 << 32) - 1
# Maximum bytes of the states in one frame. The scheduler asks again for those left out.
MAX_STATE_BYTES: Final = 32 << 20


class StateSpec(NamedTuple):
    """One pair of input and output, and the input's initial value without batch dimension."""

    input: str
    output: str
    datatype: str
    initial: Array


_T = TypeVar("_T")


class SequenceStates(Generic[_T]):
    """The states of one instance's sequences. Only the instance's thread uses them.

    A state is a list of tensors, one for each pair, which responses replace; empty if lost. The
    next sequence in a slot gets another list, since responses to the previous one may still come.
    """

    def __init__(  # noqa: PLR0913, PLR0917 (a tensor's two conversions)
        self,
        model_name: str,
        specs: Sequence[StateSpec],
        initial: Sequence[_T],
        read: Callable[[StateSpec, pb.StateTensor], _T],
        write: Callable[[_T], pb.StateTensor],
        max_state_bytes: int = MAX_STATE_BYTES,
    ) -> None:
        """read, write: convert a tensor from and to its message; read raises InvalidArgument."""
        self._model_name, self._specs, self._initial = model_name, specs, initial
        self._read_tensor, self._write_tensor = read, write
        self._max_state_bytes = max_state_bytes
        self._states: dict[int, list[_T]] = {}

    def begin(self, member: pb.BatchMember) -> list[_T]:
        """Return the state with which a member's request begins; Unavailable if it is not here.

        Call it for all members in order: of two sequences in a slot, the first one ends in this
        batch.
        """
        slot = member.sequence_slot
        if not slot:
            return [*self._initial]
        cause = "its instance does not have it"
        if has_flag(member, "sequence_start"):
            # If this request fails, the next one must not find the state of an earlier sequence.
            self._states[slot] = [*self._initial]
        elif member.HasField("restore"):
            cause = "it could not be restored"
            self.restore(slot, member.restore.state)
            if member.restore.requests:
                # A successful replay would have removed the requests from the message.
                self.lose(slot)
        state = self._states.get(slot)
        if state:
            return state
        raise Unavailable(
            f"the state of sequence {_sequence_id(member)} of model '{self._model_name}' is lost:"
            f" {cause}; begin it again with a request that has the START flag",
            accepted=True,
        )

    def end(self, slot: int, state: list[_T]) -> None:
        """Forget an ended sequence's state, unless its slot has another sequence's state by now."""
        if self._states.get(slot) is state:
            del self._states[slot]

    def clear(self) -> None:
        """Forget all states."""
        self._states.clear()

    def replays(self, members: Iterable[pb.BatchMember]) -> Iterator[list[pb.BatchMember]]:
        """Yield lists of requests that other instances have executed, to be executed again here.

        Execute a list when the one before is complete, and all lists before the batch. Drop the
        responses. If a request fails, call lose() for its slot.
        """
        restores = [member.restore for member in members if member.restore.requests]
        for index, restore in enumerate(restores):
            self.restore(_REPLAY_SLOT - index, restore.state)
            for request in restore.requests:
                request.sequence_slot = _REPLAY_SLOT - index
        for step in zip_longest(*(restore.requests for restore in restores)):
            yield [request for request in step if request is not None]
        for index, restore in enumerate(restores):
            state = self.export(_REPLAY_SLOT - index)
            if state:
                restore.state = state
                del restore.requests[:]
            else:
                _log.error(
                    "the requests of a sequence of model '%s' could not be replayed",
                    self._model_name,
                )

    def lose(self, slot: int) -> None:
        """Mark the state of the sequence in a slot as lost."""
        self._states[slot] = []

    def restore(self, slot: int, state: bytes) -> None:
        """Begin a sequence with a serialised state. Empty bytes stand for the initial state."""
        self.lose(slot)
        try:
            self._states[slot] = self._read(state) if state else [*self._initial]
        except (DecodeError, NereidError) as error:
            _log.error(
                "the state of a sequence of model '%s' cannot be restored: %s",
                self._model_name,
                error.message if isinstance(error, NereidError) else "it cannot be read",
            )

    def export(self, slot: int) -> bytes:
        """Forget a slot's state; return the state as serialised StateTensors, or no bytes."""
        return self._write(self._states.pop(slot, []))

    def export_states(self, slots: Iterable[int], reply: pb.Executed) -> None:
        """Add the states of slots to a reply, as far as they fit; forget the added states."""
        size_bytes = 0
        for slot in slots:
            state = self._write(self._states.get(slot, []))
            size_bytes += len(state)
            if size_bytes > self._max_state_bytes and reply.states:
                return
            reply.states.add(slot=slot, state=state)
            self._states.pop(slot, None)

    def return_states(self, states: Iterable[tuple[int, list[_T]]], reply: pb.Executed) -> None:
        """Add the states that the scheduler wants together with responses, as far as they fit."""
        size_bytes = 0
        for slot, tensors in states:
            state = self._write(tensors)
            size_bytes += len(state)
            if size_bytes <= self._max_state_bytes:
                reply.states.add(slot=slot, state=state)

    def _write(self, state: list[_T]) -> bytes:
        return pb.StateTensors(tensors=map(self._write_tensor, state)).SerializeToString()

    def _read(self, state: bytes) -> list[_T]:
        tensors = pb.StateTensors.FromString(state).tensors
        if len(tensors) != len(self._specs):
            raise Internal(f"it has {len(tensors)} tensors instead of {len(self._specs)}")
        return [*map(self._read_tensor, self._specs, tensors)]


def state_specs(config: model_config_pb2.ModelConfig, model_path: Path) -> list[StateSpec]:
    """Return the states of a model; raise InvalidArgument for an unreadable initial value."""
    return [_spec(config.name, state, model_path) for state in config.sequence_batching.state]


def has_flag(member: pb.BatchMember, name: str) -> bool:
    """Return whether a request has a parameter of this name that is true."""
    return name in member.parameters and member.parameters[name].bool_param


def _sequence_id(member: pb.BatchMember) -> CorrelationId:
    correlation_id = read_parameters(member.parameters).get("sequence_id", 0)
    return as_unsigned(correlation_id) if isinstance(correlation_id, int) else str(correlation_id)


def _spec(model: str, state: State, model_path: Path) -> StateSpec:
    datatype = NAME_OF_CONFIG_NUMBER[state.data_type]
    initial: Array | None = None
    for written in state.initial_state:
        initial = _initial(model, state, written, model_path / _DIRECTORY)
    if initial is None:
        # Without an initial value, the model has to look at the START flag.
        initial = _zeros(datatype, [max(dim, 1) for dim in state.dims])
    return StateSpec(state.input_name, state.output_name, datatype, initial)


def _initial(model: str, state: State, initial: InitialState, directory: Path) -> Array:
    datatype = NAME_OF_CONFIG_NUMBER[initial.data_type]
    if initial.WhichOneof("state_data") != "data_file":
        return _zeros(datatype, initial.dims)
    try:
        raw = read_regular_file(directory / initial.data_file, MAX_TENSOR_BYTES)
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
