"""The text of a config.pbtxt to a ModelConfig message; faults with line, column and a suggestion.

Knows the syntax only: what a field means, and whether its value makes sense, is decided elsewhere.
"""

from __future__ import annotations

import re
from difflib import get_close_matches
from typing import TYPE_CHECKING, Final, cast

from google.protobuf import text_format

from nereid.errors import InvalidArgument
from nereid.pb import model_config_pb2

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from google.protobuf.descriptor import Descriptor

# protobuf's own words. It quotes the whole line before some reasons, which says nothing new.
_PLACE: Final = re.compile(r"\A\d+:\d+ : ")
_QUOTED_LINE: Final = re.compile(r"\A'.*?': (?=Enum type|Value out of range|Couldn't parse)")
_UNKNOWN_FIELD: Final = re.compile(r'Message type "([\w.]+)" has no field named "(\w+)"')
_UNKNOWN_VALUE: Final = re.compile(r'Enum type "([\w.]+)" has no value named "?(\w+)')


def parse_config(text: str, *, model_name: str) -> model_config_pb2.ModelConfig:
    """The configuration as it is written; nothing is filled in or checked.

    Raises:
        InvalidArgument: the text is not a model configuration; names line, column and reason.
    """
    config = model_config_pb2.ModelConfig()
    try:
        text_format.Parse(text.removeprefix("\ufeff"), config)
    except text_format.ParseError as error:
        line, column = error.GetLine(), error.GetColumn()
        place = "" if line is None else f"{line}:{column}: "
        reason = _reason(str(error))
        raise InvalidArgument(
            f"failed to read text proto for model '{model_name}': {place}{reason}"
        ) from error
    return config


def _reason(text: str) -> str:
    reason = _QUOTED_LINE.sub("", _PLACE.sub("", text))
    for pattern, names_of in ((_UNKNOWN_FIELD, _field_names), (_UNKNOWN_VALUE, _value_names)):
        found = pattern.search(reason)
        if found:
            near = get_close_matches(found[2], names_of(found[1]), n=1)
            if near:
                return f"{reason} Did you mean '{near[0]}'?"
    return reason


def _field_names(message: str) -> Iterable[str]:
    return next(m for m in _messages() if m.full_name == message).fields_by_name


def _value_names(enum: str) -> Iterable[str]:
    return next(
        field.enum_type
        for message in _messages()
        for field in message.fields
        if field.enum_type is not None and field.enum_type.full_name == enum
    ).values_by_name


def _messages() -> Iterator[Descriptor]:
    """The messages that a configuration is made of; the schema has no recursion."""
    waiting = [cast("Descriptor", model_config_pb2.ModelConfig.DESCRIPTOR)]
    while waiting:
        message = waiting.pop()
        yield message
        waiting += [field.message_type for field in message.fields if field.message_type]
