"""How generators take parameters: declared, or found by the usual names."""

from __future__ import annotations

import json
from typing import Any

import pytest

from nereid.core.errors import InvalidArgument
from nereid.text import TextMapping, read_mapping
from nereid.text.generation import Generation, GenerationInput
from tests.support.models.onnx_models import config

TEXT = 'input { name: "TEXT" data_type: TYPE_STRING dims: [ 1 ] }'
SAID = 'output { name: "SAID" data_type: TYPE_STRING dims: [ 1 ] }'
LIMIT = 'input { name: "LIMIT" data_type: TYPE_INT32 dims: [ 1 ] optional: true }'


def read_all(
    tensors: str, batch: int = 0, files: dict[str, Any] | None = None, **section: Any
) -> TextMapping:
    message = config(tensors)
    message.max_batch_size = batch
    written = {"text.json": {"task": "generate", "generation": section}, **(files or {})}
    contents = {
        name: (content if isinstance(content, str) else json.dumps(content)).encode()
        for name, content in written.items()
    }
    mapping = read_mapping(message, contents)
    assert mapping is not None
    return mapping


def read(tensors: str, batch: int = 0, **section: Any) -> Generation:
    generation = read_all(tensors, batch, **section).generation
    assert generation is not None
    return generation


def test_inputs_are_found_by_their_names() -> None:
    tensors = f"""{TEXT} {SAID}
        input {{ name: "max_tokens" data_type: TYPE_INT32 dims: [ 1 ] }}
        input {{ name: "random_seed" data_type: TYPE_UINT64 dims: [ 1 ] optional: true }}
        input {{ name: "stop_words" data_type: TYPE_STRING dims: [ -1 ] optional: true }}
        input {{ name: "stream" data_type: TYPE_BOOL dims: [ 1 ] optional: true }}"""
    generation = read(tensors, batch=4)
    assert generation.inputs == {
        "max_tokens": GenerationInput("max_tokens", "INT32", (1, 1)),
        "seed": GenerationInput("random_seed", "UINT64", (1, 1)),
        "stop": GenerationInput("stop_words", "BYTES", (1, -1)),
        "stream": GenerationInput("stream", "BOOL", (1, 1)),
    }
    assert not generation.takes_schema
    # The limit is not optional.
    assert generation.max_tokens == 256
    assert read(tensors, max_tokens=9).max_tokens == 9
    assert not generation.takes("top_p")


def test_inputs_of_the_backend_for_the_llm_api() -> None:
    tensors = """
        input { name: "text_input" data_type: TYPE_STRING dims: [ 1 ] }
        input { name: "streaming" data_type: TYPE_BOOL dims: [ 1 ] optional: true }
        input { name: "sampling_param_max_tokens" data_type: TYPE_INT32 dims: [ 1 ] optional: true }
        input { name: "sampling_param_stop" data_type: TYPE_STRING dims: [ -1 ] optional: true }
        input { name: "sampling_param_exclude_input_from_output" data_type: TYPE_BOOL dims: [ 1 ]
            optional: true }
        output { name: "text_output" data_type: TYPE_STRING dims: [ -1 ] }"""
    mapping = read_mapping(config(tensors), {})
    assert mapping is not None
    assert mapping.generation is not None
    names = {role: tensor.name for role, tensor in mapping.generation.inputs.items()}
    assert names == {
        "max_tokens": "sampling_param_max_tokens",
        "stop": "sampling_param_stop",
        "stream": "streaming",
        "exclude_prompt": "sampling_param_exclude_input_from_output",
    }


def test_a_schema_has_an_input_or_is_among_the_sampling_parameters() -> None:
    guide = """
        input { name: "guided_decoding_guide" data_type: TYPE_STRING dims: [ 1 ] optional: true }
        input { name: "ignore_eos" data_type: TYPE_BOOL dims: [ 1 ] optional: true }"""
    generation = read(TEXT + SAID + guide)
    assert generation.inputs["schema"].name == "guided_decoding_guide"
    assert generation.takes("ignore_eos")
    assert generation.takes_schema
    packed = """
        input { name: "sampling_parameters" data_type: TYPE_STRING dims: [ 1 ] optional: true }"""
    assert read(TEXT + SAID + packed).takes_schema


def test_inputs_and_parameters_may_have_other_names() -> None:
    generation = read(
        TEXT + SAID + LIMIT,
        inputs={"max_tokens": "LIMIT"},
        parameters={"temperature": "heat"},
        outputs={},
        eos_ids=[3],
        tool_parser="mistral",
    )
    assert generation.inputs["max_tokens"].name == "LIMIT"
    assert (generation.parameters, generation.max_tokens) == ({"temperature": "heat"}, 0)
    assert (generation.eos_ids, generation.tool_parser) == (frozenset({3}), "mistral")
    assert generation.takes("temperature")


@pytest.mark.parametrize(
    ("template", "parser"),
    [("<tool_call>", "hermes"), ("[TOOL_CALLS]", "mistral"), ("<|python_tag|>", "llama3_json")],
)
@pytest.mark.parametrize(
    "file", ["chat_template.jinja", "chat_template.json", "tokenizer_config.json"]
)
def test_templates_of_all_files(file: str, template: str, parser: str) -> None:
    content: Any = template if file.endswith("jinja") else {"chat_template": template}
    mapping = read_all(TEXT + SAID, files={file: content})
    assert mapping.generation is not None
    assert (mapping.chat_template, mapping.generation.tool_parser) == (template, parser)


def test_facts_of_hugging_faces_files() -> None:
    templates = [
        {"name": "default", "template": "plain"},
        {"name": "tool_use", "template": "tools"},
        "nothing",
    ]
    tokens = {"bos_token": {"content": "<s>"}, "eos_token": "</s>", "unk_token": None}
    files: dict[str, Any] = {
        "tokenizer_config.json": {"chat_template": templates, **tokens},
        "generation_config.json": {"eos_token_id": [1, 2]},
        "config.json": {"eos_token_id": 3},
    }
    mapping = read_all(TEXT + SAID, files=files)
    assert mapping.chat_template == "tools"
    assert mapping.special_tokens == {"bos_token": "<s>", "eos_token": "</s>"}
    assert read(TEXT + SAID, files=files).eos_ids == {1, 2}
    del files["generation_config.json"]
    assert read(TEXT + SAID, files=files).eos_ids == {3}


@pytest.mark.parametrize(
    ("tensors", "section", "error"),
    [
        (TEXT + SAID, {"zoom": 1}, "generation: unknown key 'zoom'"),
        (TEXT + SAID, {"inputs": {"zoom": "x"}}, "inputs: unknown key 'zoom'"),
        (TEXT + SAID, {"inputs": {"seed": "x"}}, "seed: the model has no input 'x'"),
        (TEXT + SAID, {"inputs": {"seed": "TEXT"}}, "no input 'TEXT' besides the prompt"),
        (TEXT + SAID + LIMIT, {"inputs": {"stop": "LIMIT"}}, "is of type INT32, expected BYTES"),
        (TEXT + SAID + LIMIT, {"inputs": {"stream": "LIMIT"}}, "expected BOOL"),
        (TEXT + SAID, {"outputs": {"logprobs": "x"}}, "logprobs: the model has no output 'x'"),
        (TEXT + SAID, {"outputs": {"zoom": "x"}}, "outputs: unknown key 'zoom'"),
        (TEXT + SAID, {"parameters": ["zoom"]}, "parameters: expected names of max_tokens"),
        (TEXT + SAID, {"parameters": 3}, "parameters: expected an object"),
        (TEXT + SAID, {"tool_parser": "x"}, "tool_parser: expected one of hermes"),
        (TEXT + SAID, {"chat_template": 3}, "chat_template: expected a string"),
        (
            TEXT + SAID + LIMIT.replace("optional: true", ""),
            {},
            "inputs: the model needs input 'LIMIT' as well",
        ),
    ],
)
def test_errors_name_the_key(tensors: str, section: dict[str, Any], error: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        read(tensors, **section)
    assert error in refused.value.message
    assert refused.value.message.startswith("text.json: generation")
