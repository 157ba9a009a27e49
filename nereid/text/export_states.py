"""Completes the configuration of exported decoders with states of keys and values.

An export has them as inputs `past_key_values.*`, and returns them with those of the new tokens as
outputs `present.*`. As implicit state they stay with the instance: a generated text is a sequence.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from nereid.core.tensors.shapes import VARIABLE
from nereid.pb import model_config_pb2
from nereid.text.files import TOKENIZER

if TYPE_CHECKING:
    from collections.abc import Collection

    from google.protobuf.internal.containers import RepeatedCompositeFieldContainer

    from nereid.pb.model_config_pb2 import ModelConfig, ModelInput, ModelOutput

_PAST: Final = "past_key_values."
_PRESENT: Final = "present."
# False for the first tokens of a sequence. Exports that have it are two graphs in one.
_USES_STATE: Final = "use_cache_branch"
# Sequences of an instance, whose states are in memory. Others wait.
_MAX_SEQUENCES: Final = 16
# A client that reads slowly loses its slot after this time; its text is begun again, with the
# tokens so far.
_MAX_IDLE_US: Final = 10_000_000
_RANK: Final = 4


def add_states(config: ModelConfig, files: Collection[str]) -> bool:
    """Make states of an exported decoder's keys and values; return whether it has them.

    `config` is complete. Other models do not change.
    """
    if TOKENIZER not in files:
        return False
    inputs = {tensor.name: tensor for tensor in config.input}
    outputs = {tensor.name: tensor for tensor in config.output}
    pairs = {name: _PRESENT + name.removeprefix(_PAST) for name in inputs if name.startswith(_PAST)}
    if not pairs or any(
        output not in outputs or _initial_dims(config, inputs[name]) is None
        for name, output in pairs.items()
    ):
        return False
    sequences = model_config_pb2.ModelSequenceBatching(max_sequence_idle_microseconds=_MAX_IDLE_US)
    sequences.oldest.max_candidate_sequences = _MAX_SEQUENCES
    for name, output in pairs.items():
        tensor = inputs[name]
        state = sequences.state.add(
            input_name=name, output_name=output, data_type=tensor.data_type, dims=tensor.dims
        )
        state.initial_state.add(
            name="empty",
            data_type=tensor.data_type,
            dims=_initial_dims(config, tensor),
            zero_data=True,
        )
    removed = {*pairs, *pairs.values()}
    if _USES_STATE in inputs:
        control = sequences.control_input.add(name=_USES_STATE).control.add()
        control.kind = model_config_pb2.ModelSequenceBatching.Control.CONTROL_SEQUENCE_START
        control.bool_false_true[:] = [True, False]
        removed.add(_USES_STATE)
    config.sequence_batching.CopyFrom(sequences)
    if config.max_batch_size:
        config.max_batch_size = max(config.max_batch_size, _MAX_SEQUENCES)
    _remove(config.input, removed)
    _remove(config.output, removed)
    return True


def _initial_dims(config: ModelConfig, tensor: ModelInput) -> list[int] | None:
    """Return the dims of keys or values of no tokens: [batch, heads, 0, size]."""
    dims = [1, *tensor.dims] if config.max_batch_size else list(tensor.dims)
    if len(dims) != _RANK or dims[2] != VARIABLE or VARIABLE in (dims[1], dims[3]):
        return None
    empty = [1, dims[1], 0, dims[3]]
    return empty[1:] if config.max_batch_size else empty


def _remove(
    tensors: RepeatedCompositeFieldContainer[ModelInput]
    | RepeatedCompositeFieldContainer[ModelOutput],
    names: set[str],
) -> None:
    for index in reversed(range(len(tensors))):
        if tensors[index].name in names:
            del tensors[index]
