"""The generate extension's JSON, case by case as Triton reads and writes it."""

from __future__ import annotations

import json
import struct
from typing import Any

import pytest

from nereid.core.errors import NereidError, http_status
from nereid.core.tensors.byte_elements import join_bytes
from nereid.core.wire.messages import InferResponse
from nereid.pb import kserve_pb2
from nereid_gateway.fronts.http.endpoints import generate_schema
from nereid_gateway.fronts.http.inference.infer_response import InferResponseEncoder

INPUTS = {
    "TEXT": ("BYTES", [1]),
    "N": ("INT32", [1]),
    "ARR": ("FP32", [-1]),
    "M": ("INT32", [2, -1]),
    "FX": ("INT32", [2, 3]),
    "B": ("BOOL", [1]),
    "H": ("FP16", [1]),
    "NONE": ("INT32", [0]),
}


def metadata(*, batch: bool = False) -> kserve_pb2.ModelMetadataResponse:
    message = kserve_pb2.ModelMetadataResponse(name="m")
    for name, (datatype, shape) in INPUTS.items():
        message.inputs.add(name=name, datatype=datatype, shape=[-1] * batch + shape)
    return message


def read(body: Any, *, batch: bool = False) -> Any:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return generate_schema.decode_request(data, "m", "", metadata(batch=batch))


def ints(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}i", *values)


HI = join_bytes([b"hi"])


@pytest.mark.parametrize(
    ("body", "batch", "inputs"),
    [
        ({"TEXT": "hi"}, False, [("TEXT", [1], HI)]),
        ({"TEXT": [["hi"]]}, False, [("TEXT", [1], HI)]),
        ({"TEXT": ["hi", "hi"]}, True, [("TEXT", [2, 1], HI + HI)]),
        ({"N": 5, "parameters": {"TEXT": "hi"}}, False, [("N", [1], ints(5)), ("TEXT", [1], HI)]),
        ({"N": 5_000_000_000}, False, [("N", [1], ints(705032704))]),
        ({"ARR": [1, 2.5]}, False, [("ARR", [2], struct.pack("<2f", 1, 2.5))]),
        ({"ARR": []}, False, [("ARR", [0], b"")]),
        (b'{"ARR":[Infinity]}', False, [("ARR", [1], struct.pack("<f", float("inf")))]),
        ({"M": [1, 2, 3, 4]}, True, [("M", [1, 2, 2], ints(1, 2, 3, 4))]),
        ({"FX": [1, 2, 3, 4, 5, 6]}, True, [("FX", [1, 2, 3], ints(1, 2, 3, 4, 5, 6))]),
        (b'{"TEXT":"hi"}\0rest', False, [("TEXT", [1], HI)]),
    ],
)
def test_members_with_an_inputs_name_are_that_input(body: Any, batch: bool, inputs: Any) -> None:
    request = read(body, batch=batch)
    head = kserve_pb2.ModelInferRequest.FromString(request.head)
    assert head.model_name == "m"
    got = [
        (each.name, list(each.shape), payload)
        for each, payload in zip(head.inputs, request.payloads, strict=True)
    ]
    assert got == inputs
    assert [each.datatype for each in head.inputs] == [INPUTS[name][0] for name, *_ in inputs]
    assert request.parameters is None


def test_the_inputs_together_have_a_limit() -> None:
    body = b'{"ARR":[1,2],"TEXT":"hi"}'
    assert len(generate_schema.decode_request(body, "m", "", metadata(), 14).payloads) == 2
    with pytest.raises(NereidError) as caught:
        generate_schema.decode_request(body, "m", "", metadata(), 13)
    assert http_status(caught.value.code) == 400
    assert caught.value.message == (
        "request size of 8 bytes with input 'TEXT' of size 6 bytes exceeds the maximum allowed"
        " input size of 13. Use --http-max-input-size to increase the limit."
    )


def test_other_members_are_parameters() -> None:
    request = read(
        {
            "id": "abc",
            "TEXT": "hi",
            "a": 1,
            "priority": 7,
            "triton_x": True,
            "parameters": {"b": -1, "d": 1.5, "timeout": 9, "s": "x"},
        }
    )
    assert request.request_id == "abc"
    assert request.parameters == {
        "a": 1,
        "priority": 7,
        "triton_x": True,
        "b": -1,
        "d": 1.5,
        "timeout": 9,
        "s": "x",
    }
    # As on Triton they mean nothing to the scheduler here.
    assert (request.priority, request.timeout_us) == (0, 0)


# The texts are recorded, in tests/conformance/expected.
@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 500),
        (b"{", 500),
        ([1], 500),
        ({"id": 5}, 500),
        ({"a": None}, 400),
        ({"parameters": {"a": {"b": 1}}}, 400),
        ({"parameters": 5}, 500),
        ({"TEXT": "a", "parameters": {"TEXT": "b"}}, 400),
        ({"TEXT": 5}, 500),
        ({"TEXT": []}, 400),
        ({"TEXT": [["a", "b"]], "id": "q"}, 400),
        ({"N": "5"}, 500),
        ({"N": 10**25}, 500),
        ({"ARR": [[1, 2], [3]]}, 500),
        ({"M": [1, 2, 3]}, 400),
        ({"NONE": []}, 400),
        ({"B": 1}, 500),
        ({"H": []}, 400),
        # An input that comes twice: the first is read, and then there is another.
        (b'{"N":1,"N":2}', 400),
        (b'{"N":1,"id":"x","N":[]}', 400),
        (b'{"N":"1","N":1}', 500),
        (b'{"parameters":{"N":1,"N":2}}', 400),
    ],
)
def test_what_is_refused(body: Any, status: int) -> None:
    with pytest.raises(NereidError) as refusal:
        read(body)
    assert http_status(refusal.value.code) == status


def encoded(*outputs: tuple[str, str, bytes], request_id: str = "", **parameters: Any) -> bytes:
    head = kserve_pb2.ModelInferResponse(model_name="m", model_version="1")
    for name, datatype, _ in outputs:
        head.outputs.add(name=name, datatype=datatype, shape=[-1])
    for key, value in parameters.items():
        head.parameters[key].int64_param = value
    response = InferResponse(1, head.SerializeToString(), [payload for *_, payload in outputs])
    return generate_schema.encode_response(
        response, InferResponseEncoder().parse_head(response.head), request_id
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (encoded(), b'{"model_name":"m","model_version":"1"}'),
        (
            encoded(("z", "INT32", ints(1)), ("OUT", "BYTES", HI), request_id="7", b=2),
            b'{"OUT":"hi","b":2,"id":"7","model_name":"m","model_version":"1","z":1}',
        ),
        (
            encoded(("O", "BYTES", HI + HI), ("B", "BOOL", b"\1"), ("E", "INT32", b"")),
            b'{"B":true,"E":[],"O":["hi","hi"],"model_name":"m","model_version":"1"}',
        ),
        (
            encoded(("z", "FP32", struct.pack("<2f", float("nan"), 1)), ("A", "INT32", ints(1))),
            b'{"A":1,"model_name":"m","model_version":"1","z":[NaN,1.0]}',
        ),
        (
            encoded(("O", "BYTES", join_bytes([b'a\xff"']))),
            b'{"O":"a\xff\\"","model_name":"m","model_version":"1"}',
        ),
    ],
)
def test_responses(text: bytes, expected: bytes) -> None:
    assert text == expected


def test_half_precision_has_no_json_form() -> None:
    with pytest.raises(NereidError):
        encoded(("O", "FP16", b"\0\0"))


@pytest.mark.parametrize(
    ("body", "parameters"),
    [
        (b'{"a":1,"b":"x:y","\\u0061":2}', {"a": 1, "b": "x:y"}),
        (b'{"parameters":{"a":1},"parameters":{"a":2}}', {"a": 1}),
        (b'{"a":1,"parameters":{"a":2}}', {"a": 2}),
        (b'{"a":"{\\"a\\":1}"}', {"a": '{"a":1}'}),
        (b'{"a":NaN,"a":2}', None),
    ],
)
def test_of_a_member_that_comes_twice_the_first_counts(body: bytes, parameters: Any) -> None:
    found = read(body).parameters
    assert found == parameters or (parameters is None and str(found) == "{'a': nan}")


def test_of_an_id_that_comes_twice_the_first_counts() -> None:
    assert read(b'{"id":"x","id":7}').request_id == "x"


def test_integers_past_64_bits_are_doubles() -> None:
    body = {"a": (1 << 63) - 1, "b": 1 << 63, "c": -(1 << 63), "sequence_id": (1 << 64) - 1}
    found = read(body).parameters
    assert {key: (type(each), each) for key, each in found.items()} == {
        "a": (int, (1 << 63) - 1),
        "b": (float, 2.0**63),
        "c": (int, -(1 << 63)),
        "sequence_id": (int, (1 << 64) - 1),
    }
