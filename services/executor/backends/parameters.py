"""Values of models' parameters and of backends' settings, which are all text, as what they mean.

For backends of every kind; knows none of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nereid.config import flags
from nereid.core.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nereid.pb import model_config_pb2


def parameters_of(config: model_config_pb2.ModelConfig) -> dict[str, str]:
    """The configuration's parameters."""
    return {name: value.string_value for name, value in config.parameters.items()}


def number(
    config: model_config_pb2.ModelConfig, values: Mapping[str, str], name: str, default: int = 0
) -> int:
    """A count; what is below 0 is taken for 0.

    Raises:
        InvalidArgument: it is no whole number.
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


def truth(
    config: model_config_pb2.ModelConfig, values: Mapping[str, str], name: str, *, default: bool
) -> bool:
    """Yes or no.

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
