"""Tensors of a prompt's request."""

from __future__ import annotations

import json
from typing import Any

import pytest

from nereid.core.tensors.byte_elements import split_bytes
from nereid.pb import kserve_pb2, model_config_pb2
from nereid.pb import nereid_pb2 as pb
from nereid.text import read_mapping
from nereid_gateway.extras.openai.generation.requests import Prompt, build_request
from nereid_gateway.extras.openai.generation.sampling import Sampling
from nereid_gateway.extras.openai.texts.text_models import TextModel
from tests.support.models.onnx_models import config

OUTPUT = """output { name: "text_output" data_type: TYPE_STRING dims: [ 1 ] }"""
SCHEMA = {"required": ["a"]}


def text_input(name: str, *, optional: bool = True) -> str:
    more = "optional: true" if optional else ""
    return f'input {{ name: "{name}" data_type: TYPE_STRING dims: [ 1 ] {more} }}'


def sent(schema: dict[str, Any] | None, *names: str, **section: Any) -> dict[str, str]:
    """The texts of a model's optional inputs in a request."""
    inputs = [text_input("text_input", optional=False), *map(text_input, names)]
    message: model_config_pb2.ModelConfig = config("\n".join([*inputs, OUTPUT]))
    text = {"task": "generate", "inputs": {"text": "text_input"}, "generation": section}
    files = {"text.json": json.dumps(text).encode()}
    mapping = read_mapping(message, files)
    assert mapping is not None
    response = pb.ModelTextResponse(version="1", config=message, files=files)
    model = TextModel("m", response, mapping)
    request = build_request(model, Prompt("hello", None, 0), Sampling({}, schema=schema), 0)
    head = kserve_pb2.ModelInferRequest.FromString(request.head)
    payloads: Any = request.payloads
    texts = {
        tensor.name: split_bytes(payload)[0].decode()
        for tensor, payload in zip(head.inputs, payloads, strict=True)
    }
    assert texts.pop("text_input") == "hello"
    return texts


@pytest.mark.parametrize(
    ("schema", "tensorrt_llm", "own", "vllm"),
    [
        (None, {}, {}, {}),
        (
            {},
            {"guided_decoding_guide_type": "json"},
            # It has no input for the kind.
            {"SCHEMA": '{"type":"object"}'},
            {"structured_outputs": '{"json_object":true}'},
        ),
        (
            SCHEMA,
            {
                "guided_decoding_guide_type": "json_schema",
                "guided_decoding_guide": '{"required":["a"]}',
            },
            {"SCHEMA": '{"required":["a"]}'},
            {"structured_outputs": '{"json":{"required":["a"]}}'},
        ),
    ],
)
def test_schemas(
    schema: dict[str, Any] | None,
    tensorrt_llm: dict[str, str],
    own: dict[str, str],
    vllm: dict[str, str],
) -> None:
    guides = ("guided_decoding_guide", "guided_decoding_guide_type")
    assert sent(schema, *guides) == tensorrt_llm
    assert sent(schema, "SCHEMA", inputs={"schema": "SCHEMA"}) == own
    packed = sent(schema, "sampling_parameters")["sampling_parameters"]
    assert json.loads(packed) == vllm
