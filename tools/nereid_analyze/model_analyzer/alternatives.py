"""Expands `model_config_parameters`, in which fields may have several values.

The rules are Model Analyzer's: a list gives alternatives. For a repeated field, a list of lists
does. Alternatives of nested fields are combined.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, Final, cast

from nereid.pb import model_config_pb2

if TYPE_CHECKING:
    from collections.abc import Mapping

    from google.protobuf.descriptor import Descriptor, FieldDescriptor

_MOST: Final = 10_000


def expand(parameters: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Map each field to its alternatives; raise ValueError for an unknown field, or too many."""
    message = cast("Descriptor", model_config_pb2.ModelConfig.DESCRIPTOR)
    return {name: _of_field(message, name, value) for name, value in parameters.items()}


def _of_field(message: Descriptor, name: str, value: Any) -> list[Any]:
    field = message.fields_by_name.get(name)
    if field is None:
        raise ValueError(f"'{name}' is no field of {message.name}")
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        return _of_map(field, value)
    if not field.is_repeated:
        found = value if isinstance(value, list) else [value]
        return _checked([one for part in found for one in _of_value(field, part)])
    if isinstance(value, list) and value and all(isinstance(part, list) for part in value):
        return _checked([one for part in value for one in _of_list(field, part)])
    return _of_list(field, value if isinstance(value, list) else [value])


def _of_list(field: FieldDescriptor, values: list[Any]) -> list[Any]:
    """Return a repeated field's alternatives: all combinations of its elements' values."""
    return _checked(
        [list(choice) for choice in itertools.product(*(_of_value(field, one) for one in values))]
    )


def _of_value(field: FieldDescriptor, value: Any) -> list[Any]:
    if field.message_type is None:
        return [value]
    return _of_message(field.message_type, value or {})


def _of_message(message: Descriptor, value: Any) -> list[Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{message.name}: expected its fields")  # noqa: TRY004 (a value from a file)
    parts = {name: _of_field(message, name, part) for name, part in value.items()}
    return _checked(
        [dict(zip(parts, choice, strict=True)) for choice in itertools.product(*parts.values())]
    )


def _of_map(field: FieldDescriptor, value: Any) -> list[Any]:
    entry = field.message_type
    if not isinstance(value, dict) or entry is None:
        raise ValueError(f"{field.name}: expected names and their values")
    inner = entry.fields_by_name["value"]
    parts = {}
    for key, part in value.items():
        several = part if isinstance(part, list) else [part]
        parts[str(key)] = [one for some in several for one in _of_value(inner, some)]
    return _checked(
        [dict(zip(parts, choice, strict=True)) for choice in itertools.product(*parts.values())]
    )


def _checked(values: list[Any]) -> list[Any]:
    if len(values) > _MOST:
        raise ValueError(f"more than {_MOST} combinations")
    return values
