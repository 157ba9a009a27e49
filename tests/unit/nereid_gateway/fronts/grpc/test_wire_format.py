"""Messages cut by hand, beside protobuf's own reading of them."""

from __future__ import annotations

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from nereid.pb import kserve_pb2
from nereid_gateway.fronts.grpc.wire_format import (
    MAX_FIELDS,
    MAX_NAME_BYTES,
    first_tensor_offset,
    outline,
    split_tensors,
)

Request = kserve_pb2.ModelInferRequest
tensors = st.lists(st.binary(max_size=400), max_size=4)
requests = st.builds(
    Request, model_name=st.text(max_size=200), id=st.text(max_size=5), raw_input_contents=tensors
)


@given(requests)
def test_the_parts_are_the_whole(request: kserve_pb2.ModelInferRequest) -> None:
    message = request.SerializeToString()
    rest, places = split_tensors(memoryview(message))
    assert [message[start:end] for start, end in places] == list(request.raw_input_contents)
    del request.raw_input_contents[:]
    assert Request.FromString(rest) == request


@given(requests)
def test_an_outline_names_the_model_and_weighs_what_is_no_tensor(
    request: kserve_pb2.ModelInferRequest,
) -> None:
    found = outline(memoryview(request.SerializeToString()))
    assert (found.model, found.request_id) == (request.model_name, request.id)
    del request.raw_input_contents[:]
    assert found.rest_bytes == request.ByteSize()


def test_an_outline_reads_so_many_fields_and_so_much_of_a_name() -> None:
    name = Request(model_name="m" * 5000).SerializeToString()
    message = name + b"\x3a\x00" * MAX_FIELDS + b"\x0b"
    found = outline(memoryview(message))
    assert found.rest_bytes == len(message)
    assert found.model == "m" * MAX_NAME_BYTES


@given(requests, st.integers(0, 50))
def test_the_first_tensor_is_found_in_a_beginning(
    request: kserve_pb2.ModelInferRequest, missing: int
) -> None:
    message = request.SerializeToString()
    _, places = split_tensors(memoryview(message))
    beginning = memoryview(message)[: max(0, len(message) - missing)]
    found = first_tensor_offset(beginning)
    assert found == 0 or found == places[0][0]
    if places and len(beginning) >= places[0][0]:
        assert found == places[0][0]


@given(st.binary(max_size=60))
def test_what_can_be_cut_is_what_protobuf_reads(noise: bytes) -> None:
    try:
        rest, places = split_tensors(memoryview(noise))
        whole = Request.FromString(rest)
    except DecodeError:
        return
    expected = Request.FromString(noise)
    assert [noise[start:end] for start, end in places] == list(expected.raw_input_contents)
    del expected.raw_input_contents[:]
    assert whole == expected


@pytest.mark.parametrize(
    "damaged",
    [b"\x3a", b"\x3a\x05abcd", b"\x3a" + b"\xff" * 11, b"\x0b", b"\x0d\x01", b"\x38", b"\xff" * 12],
)
def test_a_damaged_message_is_refused(damaged: bytes) -> None:
    with pytest.raises(DecodeError):
        Request.FromString(split_tensors(memoryview(damaged))[0])
    assert first_tensor_offset(memoryview(damaged)) in (0, 2)
