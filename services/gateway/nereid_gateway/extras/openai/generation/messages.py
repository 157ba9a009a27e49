"""Messages and tools of a chat, as chat templates take them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import msgspec

from nereid_gateway.extras.openai.bodies import Body, check_count
from nereid_gateway.extras.openai.errors import InvalidParameter

if TYPE_CHECKING:
    from collections.abc import Sequence

_MAX_TOOLS: Final = 128
_NAME: Final = re.compile(r"[a-zA-Z0-9_.:-]{1,128}")
_ROLES: Final = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}


class FunctionCall(Body, kw_only=True):
    """Call of a function. arguments: JSON text."""

    name: str
    arguments: str = "{}"


class MessageToolCall(Body, kw_only=True):
    """Call of a tool in an assistant's message."""

    function: FunctionCall
    id: str = ""
    type: str = "function"
    index: int | None = None


class Part(Body, kw_only=True):
    """Part of a message."""

    type: str
    text: str | None = None
    refusal: str | None = None
    # Parts of these kinds are refused.
    image_url: Any = None
    input_audio: Any = None
    file: Any = None
    video_url: Any = None
    # Accepted without effect.
    prompt_cache_breakpoint: Any = None
    cache_control: Any = None


class Message(Body, kw_only=True):
    """Message of a chat."""

    role: str
    content: str | list[Part] | None = None
    name: str | None = None
    tool_calls: list[MessageToolCall] | None = None
    tool_call_id: str | None = None
    # Clients send back what they got.
    refusal: str | None = None
    annotations: Any = None
    audio: Any = None
    function_call: Any = None
    reasoning_content: str | None = None
    reasoning: str | None = None


def template_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Return messages as chat templates take them. Raises InvalidParameter."""
    if not messages:
        raise InvalidParameter("messages", "'messages' cannot be an empty array.", "empty_array")
    check_count("messages", messages)
    return [_template_message(message, index) for index, message in enumerate(messages)]


def _template_message(message: Message, index: int) -> dict[str, Any]:
    place = f"messages[{index}]"
    role = _ROLES.get(message.role)
    if role is None:
        raise InvalidParameter(
            f"{place}.role",
            f"Invalid value: '{message.role[:100]}'. Supported values are:"
            f" {', '.join(map(repr, _ROLES))}.",
            "invalid_value",
        )
    if message.content is None and not message.tool_calls and role != "assistant":
        raise InvalidParameter(
            f"{place}.content",
            f"Missing required parameter: '{place}.content'.",
            "missing_required_parameter",
        )
    if message.audio is not None or message.function_call is not None:
        kind = "audio" if message.audio is not None else "function_call"
        raise InvalidParameter(f"{place}.{kind}", f"'{place}.{kind}' is not supported.")
    made: dict[str, Any] = {"role": role, "content": _text_of(message.content, place)}
    if message.name is not None:
        made["name"] = message.name
    if message.tool_call_id is not None:
        made["tool_call_id"] = message.tool_call_id
    if message.reasoning_content or message.reasoning:
        made["reasoning_content"] = message.reasoning_content or message.reasoning
    if message.tool_calls:
        check_count(f"{place}.tool_calls", message.tool_calls, _MAX_TOOLS)
        made["tool_calls"] = [_template_call(call, place) for call in message.tool_calls]
    return made


def _text_of(content: str | list[Part] | None, place: str) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    check_count(f"{place}.content", content)
    texts = []
    for index, part in enumerate(content):
        text = part.refusal if part.type == "refusal" else part.text
        if part.type not in {"text", "refusal"} or text is None:
            raise InvalidParameter(
                f"{place}.content[{index}]",
                f"Invalid content: '{place}.content[{index}]' is of type '{part.type[:100]}', but"
                " this model takes text alone.",
                "invalid_value",
            )
        texts.append(text)
    return "\n".join(texts)


def _template_call(call: MessageToolCall, place: str) -> dict[str, Any]:
    """Return a call. Templates write arguments as JSON themselves, so they need the object."""
    try:
        arguments = msgspec.json.decode(call.function.arguments or "{}")
    except (msgspec.DecodeError, RecursionError):
        raise InvalidParameter(
            f"{place}.tool_calls",
            f"Invalid value for '{place}.tool_calls': arguments are not JSON.",
            "invalid_value",
        ) from None
    function = {"name": call.function.name, "arguments": arguments}
    return {"id": call.id, "type": "function", "function": function}


def template_tools(tools: Sequence[dict[str, Any]], parameter: str) -> list[dict[str, Any]]:
    """Return functions as chat templates take tools. Raises InvalidParameter.

    tools: objects with name, description and parameters.
    """
    check_count(parameter, tools, _MAX_TOOLS)
    made = []
    for index, tool in enumerate(tools):
        name = tool.get("name")
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise InvalidParameter(
                f"{parameter}[{index}]",
                f"Invalid value for '{parameter}[{index}]': expected a function with a name of"
                " letters, digits, underscores and dashes.",
                "invalid_value",
            )
        function = {
            "name": name,
            "description": tool.get("description") or "",
            "parameters": tool.get("parameters") or {"type": "object", "properties": {}},
        }
        made.append({"type": "function", "function": function})
    return made
