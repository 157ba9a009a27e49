"""Parsing of models' parameters and backends' settings, which are given as texts."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from nereid.config import flags
from nereid.core.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nereid.pb import model_config_pb2


# This is far above what a model needs. Each thread takes memory of the process that all models
# share.
MAX_THREADS: Final = max(64, 4 * (os.cpu_count() or 1))


def parameters_of(config: model_config_pb2.ModelConfig) -> dict[str, str]:
    """Return the texts of a configuration's parameters, by name."""
    return {name: value.string_value for name, value in config.parameters.items()}


def parse_count(
    config: model_config_pb2.ModelConfig,
    values: Mapping[str, str],
    name: str,
    default: int = 0,
    most: int | None = None,
) -> int:
    """Return a count, negative ones as 0; raise InvalidArgument if it is above `most`."""
    text = values.get(name)
    if text is None:
        return default
    try:
        count = max(0, int(text))
    except ValueError:
        raise InvalidArgument(
            f"unable to load model '{config.name}', "
            f"parameter '{name}' expects a whole number but got '{text}'"
        ) from None
    if most is not None and count > most:
        raise InvalidArgument(
            f"unable to load model '{config.name}', "
            f"parameter '{name}' must be at most {most} but is {count}"
        )
    return count


def parse_threads(
    config: model_config_pb2.ModelConfig, values: Mapping[str, str], name: str, default: int = 0
) -> int:
    """Return a parameter that is a number of threads; raise InvalidArgument like parse_count()."""
    return parse_count(config, values, name, default, MAX_THREADS)


def parse_boolean(
    config: model_config_pb2.ModelConfig, values: Mapping[str, str], name: str, *, default: bool
) -> bool:
    """Return a parameter that is true or false; raise InvalidArgument for any other text."""
    text = values.get(name)
    if text is None:
        return default
    try:
        return flags.boolean(text)
    except ValueError as error:
        raise InvalidArgument(
            f"unable to load model '{config.name}', '{name}' {error} but got '{text}'"
        ) from None
