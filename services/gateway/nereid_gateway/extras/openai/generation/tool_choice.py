"""Calls of tools that a client demands: a schema makes the whole text a call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from nereid_gateway.extras.openai.errors import InvalidParameter

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class DemandedCall(NamedTuple):
    """Call that a text has to be."""

    # Name of the tool whose arguments the text is. Empty: the text is a list of calls of any tools.
    tool: str
    schema: Mapping[str, Any]


def demanded_call(
    choice: str | Mapping[str, Any] | None, tools: Sequence[Mapping[str, Any]], *, parallel: bool
) -> DemandedCall | None:
    """Return the call that a client demands; None if the model decides.

    choice: as OpenAI has it, of chats or of responses. tools: as chat templates take them.
    parallel: whether several calls may come. Raises InvalidParameter.
    """
    if choice in (None, "auto", "none"):
        return None
    name = "" if choice == "required" else _name_of(choice)
    schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in tools}
    if not schemas:
        raise _refuse("it needs 'tools'")
    if name and name not in schemas:
        raise _refuse(f"'{name[:100]}' is not one of 'tools'")
    for tool, schema in schemas.items():
        if not isinstance(schema, dict):
            raise _refuse(f"the parameters of '{tool}' are no JSON schema")
    return DemandedCall(name, schemas[name] if name else _any_of(schemas, parallel=parallel))


def _name_of(choice: str | Mapping[str, Any] | None) -> str:
    if isinstance(choice, dict) and choice.get("type") == "function":
        function = choice.get("function", choice)
        name = function.get("name") if isinstance(function, dict) else None
        if isinstance(name, str) and name:
            return name
    raise _refuse("expected 'none', 'auto', 'required', or a function by its name")


def _any_of(schemas: Mapping[str, dict[str, Any]], *, parallel: bool) -> dict[str, Any]:
    definitions: dict[str, Any] = {}
    calls = []
    for name, schema in schemas.items():
        # References are from the root.
        own = schema.get("$defs") or {}
        if not isinstance(own, dict):
            raise _refuse(f"'$defs' of '{name}' is no object")
        for key, value in own.items():
            if definitions.setdefault(key, value) != value:
                raise _refuse(f"the tools define '{key[:100]}' in '$defs' differently")
        arguments = {key: value for key, value in schema.items() if key != "$defs"}
        calls.append(
            {
                "type": "object",
                "properties": {"name": {"const": name}, "arguments": arguments},
                "required": ["name", "arguments"],
                "additionalProperties": False,
            }
        )
    listed: dict[str, Any] = {"type": "array", "minItems": 1, "items": {"anyOf": calls}}
    if not parallel:
        listed["maxItems"] = 1
    if definitions:
        listed["$defs"] = definitions
    return listed


def _refuse(problem: str) -> InvalidParameter:
    return InvalidParameter(
        "tool_choice", f"Invalid value for 'tool_choice': {problem}.", "invalid_value"
    )
