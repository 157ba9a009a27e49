"""Conversion of model file descriptions to and from messages between executors and scheduler."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nereid.backends.description import ModelDescription, TensorDescription
from nereid.core.tensors.datatypes import CONFIG_NUMBER, NAME_OF_CONFIG_NUMBER

if TYPE_CHECKING:
    from collections.abc import Iterable

    from google.protobuf.internal.containers import RepeatedCompositeFieldContainer

    from nereid.pb import nereid_pb2


def read_description(described: nereid_pb2.Described) -> ModelDescription:
    """Return the description in an executor's response to Describe."""
    return ModelDescription(
        tuple(map(_read_tensor, described.inputs)),
        tuple(map(_read_tensor, described.outputs)),
        described.config if described.HasField("config") else None,
    )


def write_description(description: ModelDescription, described: nereid_pb2.Described) -> None:
    """Write a description into an executor's response to Describe."""
    _write_tensors(description.inputs, described.inputs)
    _write_tensors(description.outputs, described.outputs)
    if description.config is not None:
        described.config.CopyFrom(description.config)


def _read_tensor(tensor: nereid_pb2.TensorDescription) -> TensorDescription:
    return TensorDescription(
        name=tensor.name,
        # An unknown number becomes a datatype that fits no configuration, like TYPE_INVALID.
        datatype=NAME_OF_CONFIG_NUMBER.get(tensor.data_type, "INVALID"),
        dims=None if tensor.unknown_rank else tuple(tensor.dims),
        optional=tensor.optional,
    )


def _write_tensors(
    tensors: Iterable[TensorDescription],
    messages: RepeatedCompositeFieldContainer[nereid_pb2.TensorDescription],
) -> None:
    for tensor in tensors:
        messages.add(
            name=tensor.name,
            data_type=CONFIG_NUMBER[tensor.datatype],
            dims=tensor.dims or (),
            unknown_rank=tensor.dims is None,
            optional=tensor.optional,
        )
