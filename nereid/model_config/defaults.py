"""Defaults of tensors that nothing provides: optional inputs, and tensors of skipped steps.

A parameter for each tensor switches this extension of Nereid's on:

    parameters { key: "default.RANK" value { string_value: "0" } }

The value is JSON: one for all elements, or lists in lists. It has no batch dimension.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from nereid.core.errors import InvalidArgument
from nereid.core.tensors.datatypes import NAME_OF_CONFIG_NUMBER
from nereid.core.tensors.scalars import literal_tensor

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nereid.pb.model_config_pb2 import ModelConfig

DEFAULT: Final = "default."
_MAX_TEXT: Final = 1 << 20


class DefaultInput(NamedTuple):
    """The default of an input, of one row."""

    shape: tuple[int, ...]
    raw: bytes


def read_defaults(config: ModelConfig) -> dict[str, Any]:
    """Return the JSON values of defaults by tensor; may raise InvalidArgument.

    Parameters of a model that is no ensemble are also read by its code, so only those that name an
    optional input are defaults.
    """
    wanted = {tensor.name for tensor in config.input if tensor.optional}
    defaults = {}
    for key in sorted(config.parameters):
        name = key.removeprefix(DEFAULT)
        if name == key or not (name in wanted or config.HasField("ensemble_scheduling")):
            continue
        text = config.parameters[key].string_value
        if len(text) > _MAX_TEXT:
            raise _refuse(config, name, f"the value is longer than {_MAX_TEXT} characters")
        try:
            defaults[name] = json.loads(text, parse_constant=_refuse_constant)
        except (ValueError, RecursionError):
            raise _refuse(config, name, f"expected JSON but got '{text[:64]}'") from None
    return defaults


def read_input_defaults(config: ModelConfig) -> Mapping[str, DefaultInput]:
    """Return the defaults of optional inputs; raise InvalidArgument if one does not fit."""
    values = read_defaults(config)
    defaults = {}
    for tensor in config.input:
        if tensor.name not in values:
            continue
        if tensor.is_shape_tensor:
            raise _refuse(config, tensor.name, "a shape tensor cannot have a default")
        try:
            datatype = NAME_OF_CONFIG_NUMBER[tensor.data_type]
            defaults[tensor.name] = DefaultInput(
                *literal_tensor(values[tensor.name], datatype, tensor.dims)
            )
        except InvalidArgument as error:
            raise _refuse(config, tensor.name, error.message) from None
    return defaults


def _refuse(config: ModelConfig, name: str, reason: str) -> InvalidArgument:
    return InvalidArgument(f"parameter '{DEFAULT}{name}' of model '{config.name}': {reason}")


def _refuse_constant(text: str) -> None:
    raise ValueError(text)
