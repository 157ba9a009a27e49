"""Models' parameters and backends' settings, which are all text, as numbers and booleans."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nereid.config import flags
from nereid.core.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nereid.pb import model_config_pb2


def parameters_of(config: model_config_pb2.ModelConfig) -> dict[str, str]:
    """The configuration's parameters, as they are written."""
    return {name: value.string_value for name, value in config.parameters.items()}


def parse_count(
    config: model_config_pb2.ModelConfig, values: Mapping[str, str], name: str, default: int = 0
) -> int:
    """A count; negative numbers count as 0.

    Raises:
        InvalidArgument: it is not a whole number.
    """
    text = values.get(name)
    if text is None:
        return default
    try:
        return max(0, int(text))
    except ValueError:
        raise InvalidArgument(
            f"unable to load model '{config.name}', "
            f"parameter '{name}' expects a whole number but got '{text}'"
        ) from None


def parse_boolean(
    config: model_config_pb2.ModelConfig, values: Mapping[str, str], name: str, *, default: bool
) -> bool:
    """True or false, in any of the spellings of flags.

    Raises:
        InvalidArgument: it is neither.
    """
    text = values.get(name)
    if text is None:
        return default
    try:
        return flags.boolean(text)
    except ValueError as error:
        raise InvalidArgument(
            f"unable to load model '{config.name}', '{name}' {error} but got '{text}'"
        ) from None
