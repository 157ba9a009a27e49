"""The heads of responses, made of the metadata that workers send."""

from __future__ import annotations

import json

import pytest

from nereid.core.errors import Internal, NotFound
from nereid.core.wire.messages import ErrorStatus
from nereid.model_config.reshapes import Reshape
from nereid.pb import kserve_pb2
from nereid_executor.backends.python.messages.response_heads import (
    ResponseHeads,
    error_status_of,
)


def test_a_head_is_made_of_the_outputs_metadata() -> None:
    heads = ResponseHeads("m", "3")
    meta = json.dumps([["Y", "FP32", [2, 2]], ["Z", "BYTES", [1]]]).encode()
    head = heads.head_of(meta, [16, 9])
    response = kserve_pb2.ModelInferResponse.FromString(head)
    assert (response.model_name, response.model_version) == ("m", "3")
    assert [(each.name, each.datatype, list(each.shape)) for each in response.outputs] == [
        ("Y", "FP32", [2, 2]),
        ("Z", "BYTES", [1]),
    ]
    assert heads.head_of(meta, [16, 5]) is head


def test_a_head_may_have_parameters() -> None:
    meta = json.dumps({"outputs": [], "parameters": {"a": True, "b": "c"}}).encode()
    response = kserve_pb2.ModelInferResponse.FromString(ResponseHeads("m", "1").head_of(meta, []))
    assert response.parameters["a"].bool_param
    assert response.parameters["b"].string_param == "c"


@pytest.mark.parametrize(
    ("meta", "sizes"),
    [
        (b"[]", [4]),
        (b'[["Y","FP32",[2]]]', [4]),
        (b'[["Y","FP32",[2]]]', []),
        (b'[["Y","FP33",[2]]]', [8]),
        (b'[["Y","FP32",[-2]]]', [8]),
        (b'[["Y","FP32"]]', [8]),
        (b'{"outputs": []}', []),
        (b"\xff", []),
        (b"7", []),
    ],
)
def test_malformed_outputs(meta: bytes, sizes: list[int]) -> None:
    heads = ResponseHeads("m", "1")
    for _ in range(2):
        with pytest.raises(Internal):
            heads.head_of(meta, sizes)


@pytest.mark.parametrize(
    ("meta", "code", "message"),
    [
        (b'["NOT_FOUND","x",false]', NotFound.code, "x"),
        (b'["CANCELLED","x",1]', 1, "x"),
        (rb'["INTERNAL","a\ud800",0]', Internal.code, r"a\ud800"),
        (b'["HUH","x",false]', Internal.code, "the model failed in a way that cannot be told"),
        (b"7", Internal.code, "the model failed in a way that cannot be told"),
    ],
)
def test_errors(meta: bytes, code: int, message: str) -> None:
    assert error_status_of(meta) == ErrorStatus(code, message, accepted=True)


def test_clients_see_outputs_in_the_configured_shape() -> None:
    heads = ResponseHeads("m", "1", {"Y": Reshape((8,), (2, 4), 1)})
    meta = json.dumps([["Y", "FP32", [3, 8]], ["Z", "FP32", [3, 8]]]).encode()
    response = kserve_pb2.ModelInferResponse.FromString(heads.head_of(meta, [96, 96]))
    assert [list(each.shape) for each in response.outputs] == [[3, 2, 4], [3, 8]]


def test_an_error_that_is_the_models_response() -> None:
    error_status = error_status_of(b'["NOT_FOUND","x",true]')
    assert error_status == ErrorStatus(NotFound.code, "x", accepted=True, by_model=True)
