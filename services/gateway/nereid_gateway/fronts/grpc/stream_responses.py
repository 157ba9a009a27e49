"""Replies on an inference stream, and their order.

A model that is not decoupled gives one response per request, and its replies keep the order of
requests. A response that is not its last shows that a model is decoupled. Such a model's replies
are sent at once.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from nereid.core.wire.varint import encode_varint
from nereid.pb import kserve_pb2
from nereid_gateway.core.response_timings import STREAM_PARAMETER
from nereid_gateway.fronts.grpc import infer_codec

if TYPE_CHECKING:
    from collections.abc import Callable

    from nereid.core.wire.messages import InferResponse

_Inner = kserve_pb2.ModelInferResponse
_FINAL: Final = "triton_final_response"
_TAG: Final = b"\x12"


def _final_parameter(final: bool) -> bytes:
    message = _Inner()
    message.parameters[_FINAL].bool_param = final
    return message.SerializeToString()


_FINAL_PARAMETER: Final = {final: _final_parameter(final) for final in (False, True)}


def reply_to(
    response: InferResponse, request_id: str, final: bool = True, timings: str = ""
) -> bytes:
    """Return the reply for a response. An error goes into error_message, and the stream continues.

    timings: value of a parameter, or empty for none. As on Triton, the reply to a request that was
    not accepted has only the request's id.
    """
    if response.error is not None:
        inner = _Inner.FromString(response.head)
        inner.id = request_id
        if response.head:
            inner.parameters[_FINAL].bool_param = final
        if timings:
            inner.parameters[STREAM_PARAMETER].string_param = timings
        return kserve_pb2.ModelStreamInferResponse(
            error_message=response.error.message, infer_response=inner
        ).SerializeToString()
    parts = infer_codec.parts_of(response, request_id)
    parts.append(_FINAL_PARAMETER[final])
    if timings:
        parameter = _Inner()
        parameter.parameters[STREAM_PARAMETER].string_param = timings
        parts.append(parameter.SerializeToString())
    size = sum(map(len, parts))
    return b"".join((_TAG, encode_varint(size), *parts))


def empty_final_reply(head: bytes, request_id: str, timings: str = "") -> bytes:
    """Return the reply that ends a decoupled request. head: the head of the request."""
    request = kserve_pb2.ModelInferRequest.FromString(head)
    # As on Triton, the version is the requested one, empty if none was.
    inner = _Inner(
        model_name=request.model_name, model_version=request.model_version, id=request_id
    )
    inner.parameters[_FINAL].bool_param = True
    if timings:
        inner.parameters[STREAM_PARAMETER].string_param = timings
    return kserve_pb2.ModelStreamInferResponse(infer_response=inner).SerializeToString()


class PendingReply:
    """A request's place in the order of replies. `reply` is its last reply, once that exists."""

    __slots__ = ("reply",)

    def __init__(self) -> None:
        self.reply: bytes | None = None

    def cancel(self) -> None:
        """Cancel the request."""


class ReplyOrder:
    """Sends replies in the order of their requests. Decoupled models' replies are sent at once."""

    def __init__(self, send: Callable[[bytes], None]) -> None:
        self._send = send
        self.replies: deque[PendingReply] = deque()

    def add_request(self, pending: PendingReply) -> None:
        """Add a new request behind all other requests."""
        self.replies.append(pending)

    def send_at_once(self, reply: bytes) -> None:
        """Send a reply of a decoupled model out of order. An empty reply is not sent."""
        if reply:
            self._send(reply)

    def send_last(self, pending: PendingReply, reply: bytes) -> None:
        """Send the last reply of a request in order. An empty reply only ends the request."""
        replies = self.replies
        if replies[0] is not pending:
            pending.reply = reply
            return
        replies.popleft()
        if reply:
            self._send(reply)
        while replies and replies[0].reply is not None:
            next_reply = replies.popleft().reply
            if next_reply:
                self._send(next_reply)
