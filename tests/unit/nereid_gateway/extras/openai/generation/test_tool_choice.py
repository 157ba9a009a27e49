"""Calls of tools that clients demand."""

from __future__ import annotations

from typing import Any

import pytest

from nereid_gateway.extras.openai.errors import InvalidParameter
from nereid_gateway.extras.openai.generation.messages import template_tools
from nereid_gateway.extras.openai.generation.tool_choice import DemandedCall, demanded_call

CITY = {"type": "object", "properties": {"city": {"$ref": "#/$defs/City"}}}
DEFINITIONS = {"City": {"type": "string"}}
NAMED = {"type": "function", "function": {"name": "weather"}}


def tools(*schemas: Any) -> list[dict[str, Any]]:
    names = ("weather", "forecast")
    functions = [
        {"name": name, "parameters": schema} for name, schema in zip(names, schemas, strict=False)
    ]
    return template_tools(functions, "tools")


@pytest.mark.parametrize("choice", [None, "auto", "none"])
def test_the_model_decides(choice: str | None) -> None:
    assert demanded_call(choice, tools(CITY), parallel=True) is None


@pytest.mark.parametrize("choice", [NAMED, {"type": "function", "name": "weather"}])
def test_a_named_tool_has_its_own_schema(choice: dict[str, Any]) -> None:
    call = demanded_call(choice, tools(CITY, {"type": "object"}), parallel=True)
    assert call == DemandedCall("weather", CITY)


@pytest.mark.parametrize("parallel", [True, False])
def test_any_tool_is_one_of_a_list(parallel: bool) -> None:
    schemas = {**CITY, "$defs": DEFINITIONS}, {"type": "object", "$defs": DEFINITIONS}
    call = demanded_call("required", tools(*schemas), parallel=parallel)
    assert call is not None
    assert call.tool == ""
    assert call.schema["minItems"] == 1
    assert call.schema.get("maxItems") == (None if parallel else 1)
    # References stay valid.
    assert call.schema["$defs"] == DEFINITIONS
    kinds = [each["properties"] for each in call.schema["items"]["anyOf"]]
    assert kinds == [
        {"name": {"const": "weather"}, "arguments": CITY},
        {"name": {"const": "forecast"}, "arguments": {"type": "object"}},
    ]
    plain = demanded_call("required", tools(CITY), parallel=True)
    assert plain is not None
    assert "$defs" not in plain.schema


@pytest.mark.parametrize(
    ("choice", "schemas", "problem"),
    [
        ("required", (), "it needs 'tools'"),
        (NAMED, (), "it needs 'tools'"),
        ({"type": "function", "name": "rain"}, (CITY,), "'rain' is not one of 'tools'"),
        ({"type": "function", "name": 3}, (CITY,), "expected 'none'"),
        ({"type": "function", "function": 3}, (CITY,), "expected 'none'"),
        ({"type": "allowed_tools"}, (CITY,), "expected 'none'"),
        ("some", (CITY,), "expected 'none'"),
        (NAMED, ([1],), "the parameters of 'weather' are no JSON schema"),
        (
            "required",
            ({"$defs": {"City": {}}}, {"$defs": DEFINITIONS}),
            "the tools define 'City' in '$defs' differently",
        ),
        ("required", ({"$defs": [1]},), "'$defs' of 'weather' is no object"),
    ],
)
def test_a_choice_that_does_not_fit(choice: Any, schemas: tuple[Any, ...], problem: str) -> None:
    with pytest.raises(InvalidParameter) as refused:
        demanded_call(choice, tools(*schemas), parallel=True)
    assert refused.value.parameter == "tool_choice"
    assert problem in refused.value.message
