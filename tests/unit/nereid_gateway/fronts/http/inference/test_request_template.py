"""Templates make the requests and responses that decoding and encoding each one makes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from nereid.bounded_cache import BoundedCache
from nereid.core.wire.messages import InferResponse
from nereid.pb import kserve_pb2
from nereid_gateway.fronts.http.inference.infer_request import InferRequestDecoder
from nereid_gateway.fronts.http.inference.infer_response import InferResponseEncoder
from nereid_gateway.fronts.http.inference.request_template import RequestTemplate, make_template
from nereid_gateway.server.call import HttpCall
from tests.support.forms import attributes
from tests.support.gateway.decoding import decode_http


def tensor(name: str, size: int, **more: Any) -> dict[str, Any]:
    parameters = {"binary_data_size": size}
    return {"parameters": parameters, "datatype": "UINT8", "shape": [size], "name": name, **more}


ONE = {"inputs": [tensor("X", 3)], "parameters": {"binary_data_output": True}}
KINDS = {
    "one input": ONE,
    "more inputs": {**ONE, "inputs": [tensor("X", 3), tensor("Y", 1), tensor("Z", 2)]},
    "an empty input": {**ONE, "inputs": [tensor("X", 0), tensor("Y", 2)]},
    "one input twice": {**ONE, "inputs": [tensor("X", 2), tensor("X", 2)]},
    "unknown members": {"x": [{"id": "a"}], **ONE},
    "priority and timeout": {
        **ONE,
        "parameters": {"priority": 7, "timeout": 9, "binary_data_output": True},
    },
    "outputs": {
        "outputs": [
            {"name": name, "parameters": {"binary_data": binary}}
            for name, binary in (("P", True), ("O", True))
        ],
        **ONE,
    },
}
OTHERS = {
    "an id": {"id": "a", **ONE},
    "an id elsewhere": {**ONE, "id": "a"},
    "custom parameters": {**ONE, "parameters": {"a": 1}},
    "an input as JSON": {"inputs": [tensor("X", 3), tensor("Y", 1, data=[1], parameters={})]},
    "strings": {"inputs": [tensor("X", 5, datatype="BYTES", shape=[1])]},
}


def body_of(document: dict[str, Any], fill: int = 0) -> tuple[bytes, int]:
    """A body whose tensors have bytes from fill on, and the length of its header."""
    text = json.dumps(document).encode()
    sizes = [each["parameters"].get("binary_data_size", 0) for each in document["inputs"]]
    raw = b"\1\0\0\0a" if sizes == [5] else bytes(range(fill, fill + sum(sizes)))
    return text + raw, len(text)


def template_of(document: dict[str, Any]) -> RequestTemplate | None:
    decoder = InferRequestDecoder("m", "1", BoundedCache(1024))
    call = HttpCall(lambda: None)
    call.body, length = body_of(document)
    request, _ = decode_http(decoder, call.body, length)
    return make_template(call, decoder, length, request)


@pytest.mark.parametrize("document", KINDS.values(), ids=KINDS)
def test_requests_are_those_that_are_decoded(document: dict[str, Any]) -> None:
    template = template_of(document)
    assert template is not None
    for fill in range(1, 41):
        body, length = body_of(document, fill)
        whole, form = decode_http(InferRequestDecoder("m", "1", BoundedCache(1)), body, length)
        made = template.make_request(body)
        assert made is not None
        assert attributes(made) == attributes(whole)
        assert template.form == form


@pytest.mark.parametrize("document", OTHERS.values(), ids=OTHERS)
def test_requests_with_more_than_binary_tensors_have_no_template(document: dict[str, Any]) -> None:
    assert template_of(document) is None


def test_another_header_of_the_same_length_is_decoded() -> None:
    template = template_of(ONE)
    assert template is not None
    body, length = body_of(ONE)
    for place in range(length):
        changed = body[:place] + bytes((body[place] ^ 1,)) + body[place + 1 :]
        assert template.make_request(changed) is None


def response_of(sizes: tuple[int, ...], fill: int, names: str) -> InferResponse:
    head = kserve_pb2.ModelInferResponse(model_name="m", model_version="1")
    for name, size in zip(names, sizes, strict=True):
        head.outputs.add(name=name, datatype="UINT8", shape=[size])
    payloads: list[Any] = [bytes([fill + place]) * size for place, size in enumerate(sizes)]
    return InferResponse(1, head.SerializeToString(), payloads)


@pytest.mark.parametrize("kind", ["one input", "outputs"])
def test_responses_are_those_that_are_encoded(kind: str) -> None:
    """Also after others: of other sizes, in another order, empty, with their names exchanged."""
    template = template_of(KINDS[kind])
    assert template is not None
    kinds = [((3, 2), "OP"), ((2, 3), "OP"), ((3, 2), "PO"), ((0, 5), "OP"), ((0, 0), "OP")]
    kinds += [((40_000, 40_000), "OP"), ((40_000, 40_000), "PO"), ((3, 2), "OP")]
    remembered = 0
    for shape, names in kinds:
        for fill in range(3):
            response = response_of(shape, fill, names)
            encoded = InferResponseEncoder().encode(response, "", template.form)
            call = HttpCall(lambda: None)
            content_type, extra, parts = encoded
            call.respond(200, parts, content_type, extra)
            found = template.response_parts(response)
            if found is None:
                template.remember_response(response, encoded)
            else:
                remembered += 1
                assert b"".join(found) == b"".join(call.unwritten)
    assert remembered
