"""The parser of config.pbtxt. Its errors name line and column, and suggest a correction."""

from __future__ import annotations

import re
import warnings
from difflib import get_close_matches
from typing import TYPE_CHECKING, Final, cast

from google.protobuf import text_format

from nereid.core.errors import InvalidArgument
from nereid.pb import model_config_pb2

if TYPE_CHECKING:
    from collections.abc import Collection

    from google.protobuf.descriptor import Descriptor

# Some of protobuf's error texts quote the whole line before the reason.
_PLACE: Final = re.compile(r"\A\d+:\d+ : ")
_QUOTED_LINE: Final = re.compile(r"\A'.*?': (?=Enum type|Value out of range|Couldn't parse)")
_UNKNOWN_FIELD: Final = re.compile(r'Message type "([\w.]+)" has no field named "(\w+)"')
_UNKNOWN_VALUE: Final = re.compile(r'Enum type "([\w.]+)" has no value named "?(\w+)')


def parse_config(text: str, *, model_name: str, file: str = "") -> model_config_pb2.ModelConfig:
    """Return the configuration as written; raise InvalidArgument with line, column and reason.

    file: the file to name in errors. Like Triton, name none for the only file of a model.
    """
    config = model_config_pb2.ModelConfig()
    try:
        with warnings.catch_warnings():
            # protobuf's decoder warns about bad escapes before it raises an error.
            warnings.simplefilter("ignore", DeprecationWarning)
            text_format.Parse(text.removeprefix("\ufeff"), config)
    except text_format.ParseError as error:
        line, column = error.GetLine(), error.GetColumn()
        place = "" if line is None else f"{line}:{column}: "
        place = f"{file}:{place}" if file else place
        reason = _reason(str(error))
        raise InvalidArgument(
            f"failed to read text proto for model '{model_name}': {place}{reason}"
        ) from error
    except ValueError as error:
        # An enum's number has more than 32 bits. protobuf gives no position for this error.
        raise InvalidArgument(
            f"failed to read text proto for model '{model_name}': {file and f'{file}: '}{error}"
        ) from error
    return config


def _reason(text: str) -> str:
    reason = _QUOTED_LINE.sub("", _PLACE.sub("", text))
    for pattern, names_of in ((_UNKNOWN_FIELD, _field_names), (_UNKNOWN_VALUE, _value_names)):
        match = pattern.search(reason)
        if match:
            names = names_of(match[1])
            # Authors omit the prefix of an enum's values, as in FP32 for TYPE_FP32.
            near = [name for name in names if name.endswith(f"_{match[2]}")]
            near += get_close_matches(match[2], names, n=1)
            return f"{reason} Did you mean '{near[0]}'?" if near else reason
    return reason


def _field_names(message_name: str) -> Collection[str]:
    return next(
        message.fields_by_name for message in _messages() if message.full_name == message_name
    )


def _value_names(enum_name: str) -> Collection[str]:
    return next(
        field.enum_type.values_by_name
        for message in _messages()
        for field in message.fields
        if field.enum_type is not None and field.enum_type.full_name == enum_name
    )


def _messages() -> list[Descriptor]:
    """Return the types of all messages in a configuration; the schema is not recursive."""
    messages = [cast("Descriptor", model_config_pb2.ModelConfig.DESCRIPTOR)]
    for message in messages:
        messages.extend(field.message_type for field in message.fields if field.message_type)
    return messages
