"""What goes back on an inference stream: ModelStreamInferResponse bytes, and in which order.

Pure. Replies of models that give exactly one come in the order of their requests; those of
decoupled models, which tell themselves by an answer that is not the last, come at once.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from nereid.core.varint import encode_varint
from nereid.pb import kserve_pb2
from nereid.services.gateway.grpc import infer_codec

if TYPE_CHECKING:
    from collections.abc import Callable

    from nereid.core.messages import InferResponse

_Inner = kserve_pb2.ModelInferResponse
_FINAL: Final = "triton_final_response"
# Field infer_response of ModelStreamInferResponse.
_TAG: Final = b"\x12"


def _told_final(final: bool) -> bytes:
    message = _Inner()
    message.parameters[_FINAL].bool_param = final
    return message.SerializeToString()


_TOLD_FINAL: Final = {final: _told_final(final) for final in (False, True)}


def reply_to(response: InferResponse, request_id: str, final: bool = True) -> bytes:
    """One reply of a model; a fault's is told in error_message, and the stream goes on.

    A fault found before the request was accepted names nothing but the request's id, as on Triton.
    """
    if response.error is not None:
        inner = _Inner.FromString(response.head)
        inner.id = request_id
        if response.head:
            inner.parameters[_FINAL].bool_param = final
        return kserve_pb2.ModelStreamInferResponse(
            error_message=response.error.message, infer_response=inner
        ).SerializeToString()
    parts = infer_codec.parts_of(response, request_id)
    parts.append(_TOLD_FINAL[final])
    size = sum(map(len, parts))
    return b"".join((_TAG, encode_varint(size), *parts))


def empty_final_reply(head: bytes, request_id: str) -> bytes:
    """What tells that a decoupled request is over, to those who asked for it; head is its own."""
    model = kserve_pb2.ModelInferRequest.FromString(head).model_name
    inner = _Inner(model_name=model, id=request_id)
    inner.parameters[_FINAL].bool_param = True
    return kserve_pb2.ModelStreamInferResponse(infer_response=inner).SerializeToString()


class Turn:
    """A request's place in the order of replies.

    WAITING (reply None) -> READY (its reply is kept until its turn) -> gone
    """

    __slots__ = ("reply",)

    def __init__(self) -> None:
        self.reply: bytes | None = None

    def cancel(self) -> None:
        """Give the request up."""


class Order:
    """Gives replies to send: each when those before it are out, or at once."""

    def __init__(self, send: Callable[[bytes], None]) -> None:
        self._send = send
        self.turns: deque[Turn] = deque()

    def enter(self, turn: Turn) -> None:
        """A new request, behind all others."""
        self.turns.append(turn)

    def at_once(self, reply: bytes) -> None:
        """A decoupled model's reply waits for nobody; empty: there is none."""
        if reply:
            self._send(reply)

    def last(self, turn: Turn, reply: bytes) -> None:
        """The last reply to a request; empty: there is nothing more to send for it."""
        turns = self.turns
        if turns[0] is not turn:
            turn.reply = reply
            return
        turns.popleft()
        if reply:
            self._send(reply)
        while turns and turns[0].reply is not None:
            kept = turns.popleft().reply
            if kept:
                self._send(kept)
