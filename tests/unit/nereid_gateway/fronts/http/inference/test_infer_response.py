"""Responses as HTTP bodies."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from nereid.core.errors import InvalidArgument
from nereid.core.wire.messages import InferResponse
from nereid.pb import kserve_pb2
from nereid_gateway.fronts.http.inference.infer_request import ALL_BINARY, ResponseForm
from nereid_gateway.fronts.http.inference.infer_response import InferResponseEncoder
from nereid_gateway.server.call import BINARY, JSON

INTS = np.array([1, 2], "<i4").tobytes()


def response(*outputs: tuple[str, str, list[int], bytes], **fields: Any) -> InferResponse:
    head = kserve_pb2.ModelInferResponse(model_name="m", model_version="1", **fields)
    for name, datatype, shape, _ in outputs:
        head.outputs.add(name=name, datatype=datatype, shape=shape)
    return InferResponse(1, head.SerializeToString(), [raw for *_, raw in outputs])


TWO = response(("O", "INT32", [2], INTS), ("P", "BYTES", [1], b"\1\0\0\0a"))


def test_json() -> None:
    content_type, extra, body = InferResponseEncoder().encode(TWO, "", ResponseForm())
    assert (content_type, extra) == (JSON, b"")
    assert b"".join(body) == (
        b'{"model_name":"m","model_version":"1","outputs":[{"name":"O","datatype":"INT32",'
        b'"shape":[2],"data":[1,2]},{"name":"P","datatype":"BYTES","shape":[1],"data":["a"]}]}'
    )


def test_the_id_comes_first() -> None:
    _, _, body = InferResponseEncoder().encode(TWO, 'a"b', ResponseForm())
    assert b"".join(body).startswith(b'{"id":"a\\"b","model_name":"m"')


@pytest.mark.parametrize("request_id", ["", "abc"])
def test_binary(request_id: str) -> None:
    encoder = InferResponseEncoder()
    for _ in range(2):
        content_type, extra, body = encoder.encode(TWO, request_id, ALL_BINARY)
        assert content_type == BINARY
        joined = b"".join(body)
        length = int(extra.removeprefix(b"Inference-Header-Content-Length: "))
        document = json.loads(joined[:length])
        assert document.get("id", "") == request_id
        assert [each["parameters"]["binary_data_size"] for each in document["outputs"]] == [8, 5]
        assert joined[length:] == INTS + b"\1\0\0\0a"


def test_remembered_headers_are_those_of_the_same_sizes() -> None:
    encoder = InferResponseEncoder()
    for text in (b"a", b"bc"):
        raw = len(text).to_bytes(4, "little") + text
        one = response(("P", "BYTES", [1], raw))
        _, _, body = encoder.encode(one, "", ALL_BINARY)
        assert b'"binary_data_size":%d}' % len(raw) in b"".join(body)


def test_remembered_headers_have_each_response_s_data() -> None:
    encoder = InferResponseEncoder()
    for values in ([1, 2], [3, 4], [-5, 6]):
        one = response(
            ("O", "INT32", [2], np.array(values, "<i4").tobytes()),
            ("P", "FP32", [2], np.array(values, "<f4").tobytes()),
        )
        form = ResponseForm(False, (("P", True),) if values[0] == 3 else ())
        _, _, body = encoder.encode(one, "", form)
        joined = b"".join(body)
        assert b'"data":[%d,%d]' % tuple(values) in joined
        assert (b'"data":[%d.0,%d.0]' % tuple(values) in joined) is (values[0] != 3)


def test_some_of_each() -> None:
    form = ResponseForm(False, (("P", True),))
    content_type, _, body = InferResponseEncoder().encode(TWO, "", form)
    joined = b"".join(body)
    assert content_type == BINARY
    assert joined.endswith(b'"parameters":{"binary_data_size":5}}]}\1\0\0\0a')
    assert b'"data":[1,2]' in joined


def test_nothing_binary_is_json_even_when_binary_was_asked_for() -> None:
    empty = response(("O", "FP32", [0], b""))
    content_type, extra, body = InferResponseEncoder().encode(empty, "", ALL_BINARY)
    assert (content_type, extra) == (JSON, b"")
    assert b'"parameters":{"binary_data_size":0}' in b"".join(body)


def test_what_strict_json_cannot_represent_goes_out_all_the_same() -> None:
    raw = np.array([np.nan, np.inf, 1.5], "<f4").tobytes()
    _, _, body = InferResponseEncoder().encode(
        response(("O", "FP32", [3], raw)), "", ResponseForm()
    )
    assert b'"data":[NaN,Infinity,1.5]' in b"".join(body)
    _, _, body = InferResponseEncoder().encode(
        response(("O", "BYTES", [1], b"\1\0\0\0\xff")), "", ResponseForm()
    )
    assert b'"data":["\xff"]' in b"".join(body)


def test_half_precision_needs_binary() -> None:
    half = response(("O", "FP16", [1], b"\0\0"))
    with pytest.raises(InvalidArgument, match="sending FP16 data via JSON is not supported"):
        InferResponseEncoder().encode(half, "", ResponseForm())
    assert InferResponseEncoder().encode(half, "", ALL_BINARY)[0] == BINARY


def test_parameters_of_the_response_are_written() -> None:
    parameterised = response(parameters={"k": kserve_pb2.InferParameter(int64_param=7)})
    _, _, body = InferResponseEncoder().encode(parameterised, "", ResponseForm())
    assert json.loads(b"".join(body))["parameters"] == {"k": 7}
