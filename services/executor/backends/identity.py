"""The identity backend: every OUTPUT<i> is its INPUT<i>, of any datatype, after an optional delay.

Triton's backend of this name, with its rules and parameters: a stand-in for a (slow) model in
tests, and the example of docs/backend-authors.md. There is no model file.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from nereid.backends import EMPTY_DESCRIPTION, InstanceSpec, ModelDescription
from nereid.core.datatypes import NAME_OF_CONFIG_NUMBER
from nereid.core.errors import InvalidArgument, Unimplemented
from nereid.core.shapes import format_shape
from nereid.model_config.validation.model_file import config_type_name
from nereid.services.executor.backends.parameters import parameters_of, parse_count

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from nereid.core.tensors import Array
    from nereid.pb import model_config_pb2

    _Tensor = model_config_pb2.ModelInput | model_config_pb2.ModelOutput

_INPUT: Final = "INPUT"
_OUTPUT: Final = "OUTPUT"
# A load keeps a thread of the executor busy for so long.
_MAX_CREATION_S: Final = 60


def uses_gpus() -> bool:
    """It does not; an instance that is placed on a GPU runs on the host."""
    return False


def describe(_config: model_config_pb2.ModelConfig, _version_path: Path) -> ModelDescription:
    """Empty: there is no model file."""
    return EMPTY_DESCRIPTION


def load(spec: InstanceSpec) -> IdentityModel:
    """A model for this configuration, after creation_delay_sec."""
    config = spec.config
    _check_pairs(config)
    parameters = parameters_of(config)
    delay_s = parse_count(config, parameters, "execute_delay_ms") / 1000
    if parse_count(config, parameters, "instance_wise_delay_multiplier") > 0:
        # Triton uses the device's number, which is the same for all instances on the CPU.
        delay_s *= max(1, _instance_number(spec.name))
    time.sleep(parse_count(config, parameters, "creation_delay_sec", most=_MAX_CREATION_S))
    return IdentityModel(delay_s)


class IdentityModel:
    """Returns its inputs after a delay."""

    description = EMPTY_DESCRIPTION
    bytes_as_text = False
    any_thread = True

    def __init__(self, delay_s: float) -> None:
        self._delay_s = delay_s

    def execute(self, inputs: dict[str, Array], outputs: Sequence[str]) -> Sequence[Array]:
        if self._delay_s:
            time.sleep(self._delay_s)
        try:
            return [inputs[_INPUT + name.removeprefix(_OUTPUT)] for name in outputs]
        except KeyError as error:
            raise Unimplemented(f"failed to get input '{error.args[0]}'") from error

    def close(self) -> None:
        """There is nothing to free."""


def _check_pairs(config: model_config_pb2.ModelConfig) -> None:
    """Refuse a configuration that is no set of input/output pairs, in Triton's words."""
    if len(config.input) != len(config.output) or not config.input:
        raise InvalidArgument("model configuration must have equal input/output pairs")
    inputs = {_index("input", _INPUT, tensor): tensor for tensor in config.input}
    for output in config.output:
        given = inputs.get(_index("output", _OUTPUT, output))
        if given is None:
            raise InvalidArgument("expected input and output indices to match")
        if given.data_type != output.data_type:
            raise InvalidArgument(
                "expected input and output datatype to match, got "
                f"{_type_name(given)} and {_type_name(output)}"
            )
        if _shape(given) != _shape(output):
            raise InvalidArgument(
                "expected input and output shape to match, got "
                f"{format_shape(_shape(given))} and {format_shape(_shape(output))}"
            )


def _index(role: str, prefix: str, tensor: _Tensor) -> str:
    if not tensor.name.startswith(prefix):
        raise InvalidArgument(
            f"expected {role} name to follow {prefix}<index> pattern, got '{tensor.name}'"
        )
    return tensor.name.removeprefix(prefix)


def _type_name(tensor: _Tensor) -> str:
    return config_type_name(NAME_OF_CONFIG_NUMBER.get(tensor.data_type, "INVALID"))


def _shape(tensor: _Tensor) -> Sequence[int]:
    return list(tensor.reshape.shape if tensor.HasField("reshape") else tensor.dims)


def _instance_number(name: str) -> int:
    """The number at the end of an instance's name."""
    number_text = name.rpartition("_")[2]
    return int(number_text) if number_text.isdecimal() else 0
