"""Whose a stream's response is, and whether more will come."""

import pytest

from nereid.pb import kserve_pb2 as pb
from nereid_perf.wire.stream_responses import (
    StreamResponse,
    infer_response,
    read_response,
    request_suffix,
)

KEY = b"000000ff"


def _response(*, final: bool | None = None, outputs: int = 1, **fields: str) -> bytes:
    response = pb.ModelInferResponse(model_name="m" * 26, model_version="1", id=KEY.decode())
    response.parameters["another"].string_param = "triton_final_response"
    if final is not None:
        response.parameters["triton_final_response"].bool_param = final
    for _ in range(outputs):
        response.outputs.add(name="OUTPUT0", datatype="FP32", shape=[500])
        # Bytes like those of an id.
        response.raw_output_contents.append(b"\x1a\x08" * 1000)
    message = pb.ModelStreamInferResponse(infer_response=response, **fields)
    return message.SerializeToString()


def test_a_suffix_gives_a_request_another_id() -> None:
    message = pb.ModelInferRequest(model_name="m", id="theirs").SerializeToString()
    key, suffix = request_suffix(0xFF, decoupled=False)
    request = pb.ModelInferRequest.FromString(message + suffix)
    assert key == KEY
    assert (request.id, request.model_name) == (KEY.decode(), "m")
    assert not request.parameters


def test_a_decoupled_request_asks_for_its_end() -> None:
    request = pb.ModelInferRequest.FromString(request_suffix(1, decoupled=True)[1])
    assert request.parameters["triton_enable_empty_final_response"].bool_param


def test_keys_have_one_length() -> None:
    assert len(request_suffix(1 << 40, decoupled=False)[0]) == 8


def test_a_model_that_is_not_decoupled_gives_one_response() -> None:
    assert read_response(_response(), decoupled=False) == (KEY, "", True, False)


@pytest.mark.parametrize(
    ("message", "is_last", "is_empty"),
    [
        (_response(), False, False),
        (_response(final=False), False, False),
        (_response(final=True), True, False),
        (_response(final=True, outputs=0), True, True),
    ],
)
def test_the_end_of_a_decoupled_request(message: bytes, is_last: bool, is_empty: bool) -> None:
    found = read_response(message, decoupled=True)
    assert found == StreamResponse(KEY, "", is_last, is_empty)


def test_an_error_is_the_end() -> None:
    found = read_response(_response(outputs=0, error_message="why"), decoupled=True)
    assert found == StreamResponse(KEY, "why", is_last=True, is_empty=True)


def test_an_error_may_not_say_whose_it_is() -> None:
    message = pb.ModelStreamInferResponse(error_message="why").SerializeToString()
    assert read_response(message, decoupled=False).key == b""


def test_a_response_without_an_id_has_no_key() -> None:
    response = pb.ModelInferResponse(model_name="m")
    message = pb.ModelStreamInferResponse(infer_response=response).SerializeToString()
    assert read_response(message, decoupled=False).key == b""
    assert read_response(b"", decoupled=False).key == b""


def test_the_response_in_it() -> None:
    response = pb.ModelInferResponse.FromString(infer_response(_response()))
    assert response.id == KEY.decode()
