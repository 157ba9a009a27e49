"""A required call of a tool: any choice among the tokens permitted makes a call that is read."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from nereid.pb import nereid_pb2 as pb
from nereid.text import TextInput, TextMapping
from nereid.text.generation import TOOL_PARSERS, Generation
from nereid_gateway.extras.openai.errors import InvalidParameter
from nereid_gateway.extras.openai.generation.grammars import Grammars
from nereid_gateway.extras.openai.generation.tool_calls import ToolCall, make_tool_parser
from nereid_gateway.extras.openai.texts.text_models import TextModel
from tests.support.models import generators

SIZES = {
    "type": "object",
    "properties": {"size": {"$ref": "#/$defs/size"}},
    "required": ["size"],
    "additionalProperties": False,
    "$defs": {"size": {"enum": [1, 22, 333]}},
}
CITY = {
    "type": "object",
    "properties": {"city": {"enum": ["Kiel", "Ulm"]}},
    "required": ["city"],
    "additionalProperties": False,
}


def tool(name: str, parameters: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


TOOLS = [tool("sizes", SIZES), tool("city-of", CITY)]


def model_of(parser: str, *special: str) -> TextModel:
    tokenizer = generators.tokenizer()
    tokenizer.add_special_tokens([*special])
    files = {"tokenizer.json": tokenizer.to_str().encode()}
    response = pb.ModelTextResponse(version="1", digest=b"d", files=files)
    response.config.output.add(name="logits", dims=[-1, tokenizer.get_vocab_size()])
    generation = Generation(tool_parser=parser, special_tokens={"eos_token": generators.END})
    mapping = TextMapping(
        frozenset({"generate"}),
        TextInput("ids", "INT64"),
        output="logits",
        generation=generation,
    )
    return TextModel("m", response, mapping)


def written(model: TextModel, tools: list[dict[str, Any]], seed: int) -> str:
    """A text of random tokens among those that are permitted."""
    mask = Grammars(model).make_call_mask(tools)
    random = np.random.default_rng(seed)
    tokens: list[int] = []
    while True:
        logits = random.normal(size=model.output_size).astype(np.float32)
        mask.apply(logits)
        tokens.append(int(logits.argmax()))
        assert np.isfinite(logits[tokens[-1]])
        if mask.add(tokens[-1]):
            return str(model.tokenizer().decode(tokens, skip_special=False))


@pytest.mark.parametrize("special", [(), ("[TOOL_CALLS]", "<tool_call>")])
@pytest.mark.parametrize("name", TOOL_PARSERS)
def test_a_call_of_one_of_the_tools(name: str, special: tuple[str, ...]) -> None:
    model = model_of(name, *special)
    calls = []
    for seed in range(8):
        parser = make_tool_parser(name)
        pieces = [*parser.feed(written(model, TOOLS, seed)), *parser.flush()]
        calls += [piece for piece in pieces if piece]
    assert all(isinstance(call, ToolCall) for call in calls)
    found = {(call.name, *json.loads(call.arguments).items()) for call in calls}  # type: ignore[union-attr]
    assert {name for name, *_ in found} == {"sizes", "city-of"}
    assert {value for _, (_, value) in found} <= {1, 22, 333, "Kiel", "Ulm"}
    assert len(calls) == 8


@pytest.mark.parametrize("schema", [["x"], {"type": "nothing"}, {"pattern": "x" * 300_000}])
def test_a_schema_that_cannot_be_a_grammar_is_refused(schema: Any) -> None:
    with pytest.raises(InvalidParameter) as refused:
        Grammars(model_of("hermes")).make_call_mask([tool("a", schema)])
    assert refused.value.parameter == "tools"
