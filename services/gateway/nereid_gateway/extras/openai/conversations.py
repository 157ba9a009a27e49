"""Input of decisions: a text, or messages, calls of tools and their outputs, read as one text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from nereid.text.questions import json_text
from nereid_gateway.extras.openai.bodies import convert
from nereid_gateway.extras.openai.errors import InvalidParameter

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nereid.core.errors import InvalidArgument

# Limits of OpenAI's for a part with JSON.
_MAX_JSON_LEVELS: Final = 32
_MAX_JSON_VALUES: Final = 10_000
_MAX_JSON_BYTES: Final = 256 << 10

Status = Literal["in_progress", "completed", "incomplete"]


class Breakpoint(msgspec.Struct, forbid_unknown_fields=True):
    """End of a prefix that OpenAI's servers would cache. It has no effect."""

    mode: Literal["explicit"]


class _Part(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, tag_field="type"):
    pass


class InputText(_Part, tag="input_text"):
    """Text of a message."""

    text: str
    prompt_cache_breakpoint: Breakpoint | None = None


class InputImage(_Part, tag="input_image"):
    """Image, which no model here reads."""

    image_url: str
    detail: Literal["low", "high", "auto", "original"] | None = None
    prompt_cache_breakpoint: Breakpoint | None = None


class InputJson(_Part, tag="input_json"):
    """JSON objects, which are read as text."""

    data: dict[str, Any] | list[dict[str, Any]]


class OutputText(_Part, tag="output_text"):
    """Text of an assistant's message."""

    text: str


class RefusalPart(_Part, tag="refusal"):
    """Refusal of an assistant."""

    refusal: str


Part = InputText | InputImage | InputJson | OutputText | RefusalPart


class _Item(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    pass


class UserMessage(_Item):
    """Message of a user."""

    content: str | list[InputText | InputImage | InputJson]
    role: Literal["user"]
    type: Literal["message"] = "message"


class InstructionMessage(_Item):
    """Message of a developer or of the system."""

    content: str | list[InputText]
    role: Literal["developer", "system"]
    type: Literal["message"] = "message"


class AssistantMessage(_Item):
    """Message of an assistant."""

    content: str | list[OutputText | RefusalPart]
    role: Literal["assistant"]
    type: Literal["message"] = "message"
    phase: Literal["commentary", "final_answer"] | None = None


class _Call(_Item):
    call_id: str
    id: str | None = None
    status: Status | None = None


class FunctionCall(_Call, kw_only=True):
    """Call of a function."""

    type: Literal["function_call"]
    arguments: str
    name: str
    namespace: str | None = None


class CustomToolCall(_Call, kw_only=True):
    """Call of a custom tool."""

    type: Literal["custom_tool_call"]
    input: str
    name: str
    namespace: str | None = None


class ToolOutput(_Call, kw_only=True):
    """Output of a call."""

    type: Literal["function_call_output", "custom_tool_call_output"]
    output: str | list[InputText | InputImage]


_MESSAGES: Final[dict[object, type[UserMessage | InstructionMessage | AssistantMessage]]] = {
    "user": UserMessage,
    "developer": InstructionMessage,
    "system": InstructionMessage,
    "assistant": AssistantMessage,
}
_CALLS: Final[dict[object, type[FunctionCall | CustomToolCall | ToolOutput]]] = {
    "function_call": FunctionCall,
    "custom_tool_call": CustomToolCall,
    "function_call_output": ToolOutput,
    "custom_tool_call_output": ToolOutput,
}


def read_input(value: str | list[dict[str, Any]]) -> str:
    """Return an input as one text. Raises InvalidParameter.

    The content of a single user's message is the text. Of several items, each begins with its role
    or its tool, in lines of their own.
    """
    if isinstance(value, str):
        return value
    if not value:
        raise InvalidParameter("input", "'input' cannot be an empty array.", "empty_array")
    # Names of tools by type and id of their calls.
    tools: dict[tuple[str, str], str] = {}
    lines = [_read_item(item, f"input[{index}]", tools) for index, item in enumerate(value)]
    if len(lines) == 1 and value[0].get("role") == "user":
        return lines[0].removeprefix("user: ")
    return "\n".join(lines)


def _read_item(item: dict[str, Any], path: str, tools: dict[tuple[str, str], str]) -> str:
    kind = item.get("type", "message")
    if kind == "message":
        message_type = _MESSAGES.get(_key(item.get("role")))
        if message_type is None:
            raise _unknown(f"{path}.role", _MESSAGES)
        message = convert(item, message_type, path)
        return f"{message.role}: {read_content(message.content, f'{path}.content')}"
    call_type = _CALLS.get(_key(kind))
    if call_type is None:
        raise _unknown(f"{path}.type", ("message", *_CALLS))
    call = convert(item, call_type, path)
    if isinstance(call, ToolOutput):
        name = tools.get((call.type.removesuffix("_output"), call.call_id))
        if name is None:
            raise InvalidParameter(
                f"{path}.call_id",
                f"'{path}' has no call before it with its 'call_id' and type.",
                "invalid_value",
            )
        return f"{name} returned: {read_content(call.output, f'{path}.output')}"
    tools[call.type, call.call_id] = call.name
    arguments = call.arguments if isinstance(call, FunctionCall) else call.input
    return f"{call.name} called: {arguments}"


def read_content(content: str | list[Any], path: str) -> str:
    """Return the text of a string or of parts. Raises InvalidParameter for images."""
    if isinstance(content, str):
        return content
    return "\n".join(_read_part(part, f"{path}[{index}]") for index, part in enumerate(content))


def _read_part(part: Part, path: str) -> str:
    if isinstance(part, InputImage):
        raise InvalidParameter(
            path, f"'{path}' is an image, but the model reads text only.", "unsupported_image"
        )
    if isinstance(part, InputJson):
        return _read_json(part.data, f"{path}.data")
    return part.refusal if isinstance(part, RefusalPart) else part.text


def _read_json(data: object, path: str) -> str:
    values = 0
    level = [data]
    levels = 0
    while level:
        values += len(level)
        levels += any(isinstance(value, dict | list) for value in level)
        if levels > _MAX_JSON_LEVELS or values > _MAX_JSON_VALUES:
            raise InvalidParameter(
                path,
                f"'{path}' has more than {_MAX_JSON_LEVELS} levels or {_MAX_JSON_VALUES} values.",
            )
        level = [child for value in level for child in _children(value)]
    size = len(msgspec.json.encode(data))
    if size > _MAX_JSON_BYTES:
        raise InvalidParameter(path, f"'{path}' has {size} bytes, more than {_MAX_JSON_BYTES}.")
    return json_text(data)


def _children(value: object) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []


def _key(value: object) -> object:
    return value if isinstance(value, str) else None


def _unknown(path: str, known: Iterable[object]) -> InvalidArgument:
    return InvalidParameter(
        path,
        f"Invalid value for '{path}': expected one of {', '.join(map(str, known))}.",
        "invalid_value",
    )
