"""Responses of models as parts of texts."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from nereid.core.errors import Internal
from nereid.core.tensors.byte_elements import join_bytes
from nereid.core.wire.messages import InferResponse
from nereid.pb import kserve_pb2, model_config_pb2
from nereid.pb import nereid_pb2 as pb
from nereid.text import read_mapping
from nereid_gateway.extras.openai.generation.deltas import (
    DeltaReader,
    ResponseReader,
    TokenLogprob,
)
from nereid_gateway.extras.openai.texts.text_models import TextModel
from tests.support.models import generators
from tests.support.models.onnx_models import config

TEXT = """input { name: "TEXT" data_type: TYPE_STRING dims: [ 1 ] }
    output { name: "text_output" data_type: TYPE_STRING dims: [ 1 ] }"""
IDS = """input { name: "input_ids" data_type: TYPE_INT64 dims: [ -1 ] }
    output { name: "text_output" data_type: TYPE_INT32 dims: [ -1 ] }"""
DETAILS = """output { name: "finish_reason" data_type: TYPE_STRING dims: [ -1 ] }
    output { name: "num_output_tokens" data_type: TYPE_UINT32 dims: [ -1 ] }
    output { name: "num_input_tokens" data_type: TYPE_UINT32 dims: [ 1 ] }
    output { name: "logprobs" data_type: TYPE_STRING dims: [ -1 ] }"""


def reader(tensors: str, *, keeps_special: bool = False, ignores_eos: bool = False) -> DeltaReader:
    message: model_config_pb2.ModelConfig = config(tensors)
    files = {
        "text.json": b'{"task": "generate", "output": "text_output"}',
        "tokenizer.json": generators.tokenizer().to_str().encode(),
        "tokenizer_config.json": json.dumps({"eos_token": generators.END}).encode(),
    }
    mapping = read_mapping(message, files)
    assert mapping is not None
    response = pb.ModelTextResponse(version="1", config=message, files=files)
    model = TextModel("m", response, mapping)
    return DeltaReader(
        ResponseReader(), model, keeps_special=keeps_special, ignores_eos=ignores_eos
    )


def response(**outputs: Any) -> InferResponse:
    head = kserve_pb2.ModelInferResponse(model_name="m")
    payloads: list[Any] = []
    for name, values in outputs.items():
        if isinstance(values, np.ndarray):
            datatype = {"int32": "INT32", "uint32": "UINT32"}[values.dtype.name]
            payloads.append(values.tobytes())
        else:
            datatype = "BYTES"
            payloads.append(join_bytes(values))
        head.outputs.add(name=name, datatype=datatype, shape=[len(values)])
    return InferResponse(1, head.SerializeToString(), payloads)


def test_characters_may_be_split_between_responses() -> None:
    made = reader(TEXT)
    parts = [b"a\xc3", b"\xb6\xf0\x9f", b"\x98\x80", b"\xc3"]
    texts = [made.read(response(text_output=[part])).text for part in parts]
    assert texts == ["a", "ö", "😀", ""]
    assert made.flush() == "\ufffd"


def test_characters_may_be_split_between_tokens() -> None:
    made = reader(IDS)
    ids = generators.tokenizer().encode("aö😀").ids
    texts = [made.read(response(text_output=np.array([token], np.int32))).text for token in ids]
    assert [text for text in texts if text] == ["a", "ö", "😀"]
    assert made.flush() == ""
    made.read_ids(ids[1:2])
    assert made.flush() == "\ufffd"


def test_a_token_ends_the_text() -> None:
    ids = generators.tokenizer().encode(f"ab{generators.END}c").ids
    delta = reader(IDS).read_ids(ids)
    assert (delta.text, delta.tokens, delta.ends) == ("ab", 3, True)


def test_what_a_model_counts_and_says_of_the_end() -> None:
    made = reader(TEXT + DETAILS)
    alternatives = {
        "5": {"logprob": -0.5, "decoded_token": "x"},
        "6": {"logprob": -0.1, "decoded_token": "y"},
    }
    delta = made.read(
        response(
            text_output=["x"],
            finish_reason=["None"],
            num_output_tokens=np.array([2], np.uint32),
            num_input_tokens=np.array([7], np.uint32),
            logprobs=[json.dumps([alternatives]), "no JSON", "3"],
        )
    )
    assert (delta.text, delta.tokens, delta.prompt_tokens, delta.finish_reason) == ("x", 2, 7, "")
    assert delta.logprobs == (TokenLogprob("x", -0.5, (("y", -0.1), ("x", -0.5))),)
    assert made.read(response(text_output=[""], finish_reason=["length"])).finish_reason == "length"
    assert made.read(response(text_output=[""])).tokens == 0


def test_a_response_without_the_text_is_an_error() -> None:
    with pytest.raises(Internal, match="lacks the output 'text_output'"):
        reader(TEXT).read(response(other=["x"]))
    with pytest.raises(Internal, match="not text"):
        reader(TEXT).read(response(text_output=np.array([1], np.int32)))


def test_a_text_goes_on_behind_a_token_that_is_ignored() -> None:
    ids = generators.tokenizer().encode(f"a{generators.END}b").ids
    assert reader(IDS).read_ids(ids).ends
    delta = reader(IDS, ignores_eos=True).read_ids(ids)
    assert (delta.text, delta.tokens, delta.ends) == ("ab", 3, False)
