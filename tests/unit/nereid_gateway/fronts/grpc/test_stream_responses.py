"""Replies on a stream: their bytes, and the order in which they go out."""

from __future__ import annotations

import pytest

from nereid.core.wire.messages import ErrorStatus, InferResponse
from nereid.pb import kserve_pb2
from nereid_gateway.fronts.grpc.stream_responses import (
    PendingReply,
    ReplyOrder,
    empty_final_reply,
    reply_to,
)

Reply = kserve_pb2.ModelStreamInferResponse
HEAD = kserve_pb2.ModelInferResponse(model_name="m", model_version="3").SerializeToString()
ACCEPTED = kserve_pb2.ModelInferResponse(model_name="m").SerializeToString()


@pytest.mark.parametrize("final", [True, False])
@pytest.mark.parametrize("size", [0, 1, 127, 128, 20_000])
def test_a_response(size: int, final: bool) -> None:
    reply = Reply.FromString(reply_to(InferResponse(1, HEAD, [bytes(size), b"x"]), "é", final))
    inner = reply.infer_response
    assert (inner.model_name, inner.model_version, inner.id) == ("m", "3", "é")
    assert list(inner.raw_output_contents) == [bytes(size), b"x"]
    assert inner.parameters["triton_final_response"].WhichOneof("parameter_choice") == "bool_param"
    assert inner.parameters["triton_final_response"].bool_param is final
    assert not reply.error_message


@pytest.mark.parametrize(("head", "model", "has_final"), [(b"", "", False), (ACCEPTED, "m", True)])
def test_an_error(head: bytes, model: str, has_final: bool) -> None:
    reply = Reply.FromString(
        reply_to(InferResponse(1, head, error=ErrorStatus(3, "no good")), "id")
    )
    assert reply.error_message == "no good"
    assert (reply.infer_response.id, reply.infer_response.model_name) == ("id", model)
    assert ("triton_final_response" in reply.infer_response.parameters) is has_final


@pytest.mark.parametrize("version", ["", "1"])
def test_the_empty_final_reply(version: str) -> None:
    request = kserve_pb2.ModelInferRequest(model_name="m", model_version=version)
    inner = Reply.FromString(empty_final_reply(request.SerializeToString(), "id")).infer_response
    assert (inner.model_name, inner.model_version, inner.id) == ("m", version, "id")
    assert inner.parameters["triton_final_response"].bool_param is True


# a, b, c and d in this order; + is a reply, . the end without one, ! a reply at once.
@pytest.mark.parametrize(
    ("events", "sent"),
    [
        ("a+ b+ c+ d+", "abcd"),
        ("d+ c+ b+ a+", "abcd"),
        ("b+ a+ d+ c+", "abcd"),
        ("c! c! c. a+ b+ d+", "ccabd"),
        ("a! b+ a! a. c+", "aabc"),
        ("b. c+ a+", "ac"),
        ("b+ c+", ""),
    ],
)
def test_order(events: str, sent: str) -> None:
    out: list[bytes] = []
    order = ReplyOrder(out.append)
    pending = {name: PendingReply() for name in "abcd"}
    for each in pending.values():
        order.add_request(each)
    for name, event in map(tuple, events.split()):
        if event == "!":
            order.send_at_once(name.encode())
        else:
            order.send_last(pending[name], b"" if event == "." else name.encode())
    assert b"".join(out).decode() == sent
