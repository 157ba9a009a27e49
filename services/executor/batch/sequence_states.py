"""Implicit state: tensors that a stateful model gets from its sequence's previous request.

The configuration names pairs of an input and an output; what the model writes to the output is the
input of the sequence's next request. Kept by the number of the sequence's slot at the instance, so
that sequences that end without a word leave nothing behind. Arrays are rows, without a batch
dimension.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from nereid.core.datatypes import BYTES, NAME_OF_CONFIG_NUMBER
from nereid.core.errors import Internal, InvalidArgument
from nereid.core.tensors import NUMPY_TYPE, Array, from_raw

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from nereid.backends import Model
    from nereid.pb import model_config_pb2
    from nereid.pb import nereid_pb2 as pb

    State = model_config_pb2.ModelSequenceBatching.State
    InitialState = model_config_pb2.ModelSequenceBatching.InitialState

_DIRECTORY = "initial_state"


class StateSpec(NamedTuple):
    """One pair, and what the input is on a sequence's first request."""

    input: str
    output: str
    dtype: np.dtype[np.generic]
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

    def execute(
        self,
        model: Model,
        inputs: dict[str, Array],
        outputs: Sequence[str],
        members: Sequence[pb.BatchMember],
    ) -> list[Array]:
        """Model.execute, with the states of these members, which have a row each."""
        befores = [self._before(member) for member in members]
        shapes = [tuple(row.shape for row in rows) for rows in befores]
        states = [spec.output for spec in self._specs if spec.output not in outputs]
        names = [*outputs, *states]
        if len({*shapes}) == 1:
            arrays = self._run(model, inputs, names, befores)
        else:
            arrays = self._run_by_shape(model, inputs, names, befores, shapes)
        by_name = dict(zip(names, arrays, strict=True))
        for index, member in enumerate(members):
            self._remember(member, index, by_name)
        return list(arrays[: len(outputs)])

    def _before(self, member: pb.BatchMember) -> list[Array]:
        """The rows that a member's request begins with."""
        if member.sequence_slot and not _flag(member, "sequence_start"):
            rows = self._rows.get(member.sequence_slot)
            if rows is None:
                raise Internal(
                    f"the state of a sequence of model '{self._model_name}' is not here",
                    accepted=True,
                )
            return rows
        return [spec.initial for spec in self._specs]

    def _remember(self, member: pb.BatchMember, index: int, by_name: dict[str, Array]) -> None:
        slot = member.sequence_slot
        if not slot:
            return
        if _flag(member, "sequence_end"):
            self._rows.pop(slot, None)
            return
        # Copies: a row must not keep its batch's whole array.
        self._rows[slot] = [
            np.array(by_name[spec.output][index] if self._batching else by_name[spec.output])
            for spec in self._specs
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


def _flag(member: pb.BatchMember, name: str) -> bool:
    return name in member.parameters and member.parameters[name].bool_param


def _spec(model: str, state: State, model_path: Path) -> StateSpec:
    datatype = NAME_OF_CONFIG_NUMBER[state.data_type]
    initial: Array | None = None
    for each in state.initial_state:
        initial = _initial(model, state, each, model_path / _DIRECTORY)
    if initial is None:
        # The model has to look at START.
        initial = _zeros(datatype, [max(dim, 1) for dim in state.dims])
    return StateSpec(state.input_name, state.output_name, NUMPY_TYPE[datatype], initial)


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
