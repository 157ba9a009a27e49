"""The parameters by which a model says how its requests are queued and repeated."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from nereid.config.flags import boolean, integer
from nereid.core.errors import InvalidArgument

if TYPE_CHECKING:
    from nereid.pb.model_config_pb2 import ModelConfig

AT_MOST_ONCE: Final = "at_most_once"
ADMISSION_TARGET_MS: Final = "admission_target_ms"
TARGET_P99_US: Final = "target_p99_us"

_whole: Final = integer(0)


def runs_at_most_once(config: ModelConfig) -> bool:
    """Whether a request of this model that may have begun to run must not run again.

    Raises:
        InvalidArgument: the parameter is neither true nor false.
    """
    if AT_MOST_ONCE not in config.parameters:
        return False
    text = config.parameters[AT_MOST_ONCE].string_value
    try:
        return boolean(text)
    except ValueError as error:
        raise InvalidArgument(
            f"parameter '{AT_MOST_ONCE}' of model '{config.name}': {error} but got '{text}'"
        ) from None


def admission_target_ms(config: ModelConfig) -> int | None:
    """How long this model's requests may queue before more are refused; 0: for any time; None: the
    model does not say.

    Raises:
        InvalidArgument: the parameter is no such number.
    """
    return _number(config, ADMISSION_TARGET_MS)


def target_p99_us(config: ModelConfig) -> int:
    """How long this model's requests may take, but for one in a hundred; 0: there is no target.

    Raises:
        InvalidArgument: the parameter is no such number.
    """
    return _number(config, TARGET_P99_US) or 0


def _number(config: ModelConfig, name: str) -> int | None:
    if name not in config.parameters:
        return None
    text = config.parameters[name].string_value
    try:
        return int(_whole(text))
    except ValueError as error:
        raise InvalidArgument(
            f"parameter '{name}' of model '{config.name}': {error} but got '{text}'"
        ) from None
