import gzip
import json
import zlib
from typing import Any

import pytest

from nereid.pb import kserve_pb2
from nereid_adopt.calls.requests import (
    NO_FACTS,
    RegionRange,
    decoded,
    grpc_facts,
    grpc_leading_facts,
    http_facts,
    model_of,
)
from nereid_adopt.calls.traffic import SequenceStep

_SHARED = {"shared_memory_region": "r", "shared_memory_byte_size": 8, "shared_memory_offset": 4}


def request(**parameters: Any) -> kserve_pb2.ModelInferRequest:
    message = kserve_pb2.ModelInferRequest(model_name="m")
    for name, value in parameters.items():
        kind = {bool: "bool_param", int: "int64_param", str: "string_param"}[type(value)]
        setattr(message.parameters[name], kind, value)
    return message


def test_a_request_without_either_word_is_not_parsed() -> None:
    assert http_facts("m", b"{not json", 0) is NO_FACTS
    assert grpc_facts(request().SerializeToString()) == ("m", NO_FACTS)


def with_input(message: kserve_pb2.ModelInferRequest, parameters: dict[str, str]) -> None:
    tensor = message.inputs.add(name="a")
    for name, value in parameters.items():
        tensor.parameters[name].string_param = value


@pytest.mark.parametrize(
    ("parameters", "of_input"),
    [
        ({}, {}),
        ({"x": "y"}, {"x": "y"}),
        ({"sequence_id": 7}, {}),
        ({"sequence_id": "s", "sequence_end": True}, {}),
        ({}, {"shared_memory_region": "r"}),
        ({"sequence_id": 0}, {"shared_memory_region": ""}),
    ],
)
def test_searched_messages_have_the_facts_of_parsed_ones(
    parameters: dict[str, Any], of_input: dict[str, str]
) -> None:
    small, large = request(**parameters), request(**parameters)
    for message in (small, large):
        with_input(message, of_input)
    # Larger messages are parsed without a search.
    large.raw_input_contents.append(bytes(5000))
    assert grpc_facts(small.SerializeToString()) == grpc_facts(large.SerializeToString())


@pytest.mark.parametrize("sequence_id", [7, "seven"])
def test_sequences_are_read(sequence_id: int | str) -> None:
    parameters = {"sequence_id": sequence_id, "sequence_start": True, "sequence_end": False}
    expected = SequenceStep("m", str(sequence_id), start=True, end=False)
    body = json.dumps({"parameters": parameters}).encode()
    assert http_facts("m", body + b"\xff", len(body)).step == expected
    assert http_facts("m", json.dumps(parameters).encode(), 0).step == expected
    message = request(**parameters).SerializeToString()
    assert grpc_facts(message)[1].step == expected


def test_zero_and_no_text_are_no_sequence() -> None:
    for sequence_id in (0, ""):
        body = json.dumps({"parameters": {"sequence_id": sequence_id}}).encode()
        assert http_facts("m", body, 0).step is None


def test_regions_are_read() -> None:
    tensors = [{"name": "a", "parameters": _SHARED}, {"name": "b"}]
    body = json.dumps({"inputs": tensors, "outputs": [{"name": "y", "parameters": _SHARED}]})
    facts = http_facts("m", body.encode(), 0)
    assert facts.input_ranges == {"a": RegionRange("r", 4, 8)}
    assert facts.output_ranges == {"y": RegionRange("r", 4, 8)}
    message = kserve_pb2.ModelInferRequest(model_name="m")
    for tensor in (message.inputs.add(name="a"), message.outputs.add(name="y")):
        tensor.parameters["shared_memory_region"].string_param = "r"
        tensor.parameters["shared_memory_byte_size"].int64_param = 8
    message.inputs.add(name="b")
    _, facts = grpc_facts(message.SerializeToString())
    assert facts.input_ranges == {"a": RegionRange("r", 0, 8)}
    assert facts.output_ranges == {"y": RegionRange("r", 0, 8)}


@pytest.mark.parametrize(
    "body",
    [
        b'{"sequence_id"',
        b'["sequence_id"]',
        b'{"inputs": [{"parameters": {"shared_memory_region": "r"}}]}',
        b'{"inputs":[{"name":"a","parameters":{"shared_memory_region":0,"shared_memory_offset":""}}]}',
        b'{"sequence_id": ' + b"[" * 100_000,
    ],
)
def test_damaged_http_requests_have_no_facts(body: bytes) -> None:
    assert http_facts("m", body, 0) is NO_FACTS


def test_damaged_grpc_requests_have_no_facts() -> None:
    assert grpc_facts(b"\xffsequence_id") == ("", NO_FACTS)


def test_the_model_is_read_from_the_first_field_or_anywhere() -> None:
    assert model_of(request().SerializeToString()) == "m"
    long = kserve_pb2.ModelInferRequest(model_name="m" * 200).SerializeToString()
    assert model_of(long) == "m" * 200
    other = kserve_pb2.ModelInferRequest(id="1").SerializeToString()
    assert model_of(other + request().SerializeToString()) == "m"
    assert model_of(b"\xff") == ""
    assert model_of(b"") == ""


def test_bodies_are_decoded() -> None:
    assert decoded(b"x", "") == b"x"
    assert decoded(gzip.compress(b"x"), "gzip") == b"x"
    assert decoded(zlib.compress(b"x"), "deflate") == b"x"
    assert decoded(b"x", "gzip") is None
    assert decoded(gzip.compress(b"x")[:-1], "gzip") is None


@pytest.mark.parametrize("size", [0, 1, 127, 128, 40_000])
def test_the_begin_of_a_grpc_request_has_its_sequence(size: int) -> None:
    request = kserve_pb2.ModelInferRequest(model_name="m", id="i" * size)
    request.parameters["sequence_id"].int64_param = 7
    request.inputs.add(name="x", datatype="BYTES", shape=[1])
    request.raw_input_contents.append(bytes(5000))
    message = request.SerializeToString()
    expected = grpc_facts(message)
    assert grpc_leading_facts(message) == grpc_leading_facts(message[:-4000]) == expected
    # Every other begin is that of a shorter request, or of none.
    for end in range(0, 100 + size, 1 + size // 100):
        model, facts = grpc_leading_facts(message[:end])
        assert model in {"", "m"}
        assert facts in (NO_FACTS, expected[1])
