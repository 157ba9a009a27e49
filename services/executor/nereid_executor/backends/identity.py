"""The identity backend: OUTPUT<i> is INPUT<i>, of any datatype, after an optional delay."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import numpy as np

from nereid.backends import EMPTY_DESCRIPTION, Capabilities, InstanceSpec, ModelDescription
from nereid.backends.parameters import parameters_of, parse_count
from nereid.core.errors import InvalidArgument, Unimplemented
from nereid.core.tensors.datatypes import NAME_OF_CONFIG_NUMBER
from nereid.core.tensors.shapes import VARIABLE, format_shape
from nereid.core.tensors.tensors import NUMPY_TYPE
from nereid.model_config.validation.model_file import config_type_name
from nereid.pb import model_config_pb2

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from nereid.core.tensors.tensors import Array

    _Tensor = model_config_pb2.ModelInput | model_config_pb2.ModelOutput

_INPUT: Final = "INPUT"
_OUTPUT: Final = "OUTPUT"
# The load keeps an executor thread busy for the whole delay, so the delay is limited.
_MAX_CREATION_S: Final = 60


def uses_gpus() -> bool:
    """Return False: even an instance that is placed on a GPU runs on the host."""
    return False


def describe(_config: model_config_pb2.ModelConfig, _version_path: Path) -> ModelDescription:
    """Return an empty description, since there is no model file."""
    return EMPTY_DESCRIPTION


def load(spec: InstanceSpec) -> IdentityModel:
    """Wait for creation_delay_sec, then return a model for this configuration."""
    config = spec.config
    _check_pairs(config)
    parameters = parameters_of(config)
    delay_s = parse_count(config, parameters, "execute_delay_ms") / 1000
    if parse_count(config, parameters, "instance_wise_delay_multiplier") > 0:
        # Triton multiplies by the device's number. All instances on the CPU have the same one, so
        # this backend multiplies by the instance's number.
        delay_s *= max(1, _instance_number(spec.name))
    time.sleep(parse_count(config, parameters, "creation_delay_sec", most=_MAX_CREATION_S))
    return IdentityModel(delay_s, config)


class IdentityModel:
    """Returns its inputs after a delay."""

    description = EMPTY_DESCRIPTION

    def __init__(self, delay_s: float, config: model_config_pb2.ModelConfig) -> None:
        self._delay_s = delay_s
        self._batching = config.max_batch_size > 0
        # For a ragged input, each request gets its own elements back, in the request's shape.
        ragged_outputs = {
            _OUTPUT + tensor.name.removeprefix(_INPUT): tensor.name
            for tensor in config.input
            if tensor.allow_ragged_batch
        }
        self.capabilities = Capabilities(ragged_outputs=ragged_outputs)
        # Key: an optional input. Value: one row of zeros. Variable dimensions are 1, as on Triton.
        self._absent = {
            tensor.name: np.zeros(
                [1 if dim == VARIABLE else dim for dim in _shape(tensor)],
                NUMPY_TYPE[NAME_OF_CONFIG_NUMBER[tensor.data_type]],
            )
            for tensor in config.input
            if tensor.optional
            and not tensor.allow_ragged_batch
            and tensor.data_type != model_config_pb2.TYPE_STRING
        }

    def execute(self, inputs: dict[str, Array], outputs: Sequence[str]) -> Sequence[Array]:
        """Wait for the delay. For each named output, return the input with the same number."""
        if self._delay_s:
            time.sleep(self._delay_s)
        sources = [_INPUT + name.removeprefix(_OUTPUT) for name in outputs]
        try:
            return [inputs[name] for name in sources]
        except KeyError:
            zeros = self._zeros(inputs)
        try:
            return [inputs[name] if name in inputs else zeros[name] for name in sources]
        except KeyError as error:
            raise Unimplemented(f"failed to get input '{error.args[0]}'") from error

    def _zeros(self, inputs: dict[str, Array]) -> dict[str, Array]:
        """Return zeros for optional inputs by name; empty if no input tells the number of rows."""
        if not self._batching:
            return self._absent
        ragged = self.capabilities.ragged_outputs.values()
        rows = next((len(array) for name, array in inputs.items() if name not in ragged), None)
        if rows is None:
            return {}
        return {
            name: np.broadcast_to(row, (rows, *row.shape)) for name, row in self._absent.items()
        }

    def close(self) -> None:
        """Do nothing: the model holds no resources."""


def _check_pairs(config: model_config_pb2.ModelConfig) -> None:
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
    number_text = name.rpartition("_")[2]
    return int(number_text) if number_text.isdecimal() else 0
