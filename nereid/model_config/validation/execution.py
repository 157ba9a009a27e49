"""The parameter by which a model asks that none of its requests runs twice."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from nereid.config.flags import boolean
from nereid.core.errors import InvalidArgument

if TYPE_CHECKING:
    from nereid.pb.model_config_pb2 import ModelConfig

AT_MOST_ONCE: Final = "at_most_once"


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
