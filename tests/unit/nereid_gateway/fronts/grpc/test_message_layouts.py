"""Messages that are recognised by what precedes their tensors are read as the parser reads them."""

from __future__ import annotations

from typing import Any

import pytest

from nereid.core.errors import Internal
from nereid.core.wire.messages import InferRequest
from nereid.core.wire.varint import encode_varint
from nereid.pb import kserve_pb2
from nereid_gateway.fronts.grpc.infer_codec import GrpcDecoder
from tests.support.forms import attributes
from tests.support.gateway.decoding import decode_grpc


def _fresh(message: bytes) -> InferRequest:
    return decode_grpc(GrpcDecoder(), message)


def _recognises(decoder: GrpcDecoder, message: bytes) -> bool:
    return decoder.layouts.read(message) is not None


def _message(*tensors: bytes, model: str = "m", datatype: str = "UINT8", **more: Any) -> bytes:
    request = kserve_pb2.ModelInferRequest(model_name=model, **more)
    for number, tensor in enumerate(tensors):
        request.inputs.add(name=f"I{number}", datatype=datatype, shape=[len(tensor)])
    request.outputs.add(name="O")
    request.raw_input_contents.extend(tensors)
    return request.SerializeToString()


@pytest.mark.parametrize(
    "tensors", [[b"a"], [b"a" * 200], [b"ab", b"c"], [b"a", b"", b"b" * 500]], ids=len
)
def test_the_third_of_a_kind_is_recognised(tensors: list[bytes]) -> None:
    decoder = GrpcDecoder()
    for number in range(4):
        message = _message(*(bytes([number]) * len(each) for each in tensors))
        assert _recognises(decoder, message) == (number > 1)
        assert attributes(decode_grpc(decoder, message)) == attributes(
            decode_grpc(GrpcDecoder(), message)
        )


@pytest.mark.parametrize(
    "more",
    [
        {"id": "7"},
        {"parameters": {"custom": kserve_pb2.InferParameter(bool_param=True)}},
        {"datatype": "BYTES"},
    ],
    ids=["id", "parameters", "strings"],
)
def test_what_differs_from_request_to_request_is_parsed(more: dict[str, Any]) -> None:
    decoder = GrpcDecoder()
    message = _message(b"\x00\x00\x00\x00", **more)
    for _ in range(4):
        decode_grpc(decoder, message)
    assert not _recognises(decoder, message)


def _known() -> GrpcDecoder:
    decoder, message = GrpcDecoder(), _message(b"ab", b"cd")
    for _ in range(2):
        decode_grpc(decoder, message)
    assert _recognises(decoder, message)
    return decoder


@pytest.mark.parametrize(
    "message",
    [
        _message(b"ab", b"cd", model="n"),
        _message(b"abc", b"d"),
        _message(b"ab"),
        _message(b"ab", b"cd") + b"\x3a\x00",
        _message(b"ab", b"cd")[:-4] + b"\x4a\x02cd",
        _message(b"ab", b"cd")[:-4] + b"\x1a\x02cd",
        b"",
    ],
    ids=["model", "sizes", "one", "more", "unknown_field", "id_behind", "empty"],
)
def test_others_of_its_size_or_beginning_are_parsed(message: bytes) -> None:
    decoder = _known()
    assert not _recognises(decoder, message)
    assert attributes(decode_grpc(decoder, message)) == attributes(
        decode_grpc(GrpcDecoder(), message)
    )


def test_a_cut_off_message_is_refused() -> None:
    decoder = _known()
    with pytest.raises(Internal, match="Unable to parse request"):
        decode_grpc(decoder, _message(b"ab", b"cd")[:-1])


def test_tensors_in_front_of_the_head_are_not_learned() -> None:
    decoder = GrpcDecoder()
    head = kserve_pb2.ModelInferRequest(model_name="m")
    head.inputs.add(name="I", datatype="UINT8", shape=[2])
    raw = b"\x3a" + encode_varint(2) + b"ab"
    padded = head.SerializeToString() + b"\x3a\x82\x00ab"
    for message in (raw + head.SerializeToString(), padded):
        for _ in range(3):
            assert decode_grpc(decoder, message).payloads == [b"ab"]
        assert not _recognises(decoder, message)
