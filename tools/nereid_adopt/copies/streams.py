"""Copies of streams: requests go to the other server as they arrive, responses are paired."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from google.protobuf.message import DecodeError

from nereid.comparison.responses import Exchange, Response
from nereid_adopt.calls.requests import model_of
from nereid_adopt.calls.traffic import Side
from nereid_adopt.copies.decoding import grpc_inputs, stream_response
from nereid_adopt.copies.sender import metadata_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from nereid.comparison.responses import Tensors
    from nereid.comparison.tally import Tally
    from nereid.rpc import ClientStream, RpcError, SocketChannel
    from nereid_adopt.proxy.recorder import StreamEvent

# Responses of a request that wait for the other server's are compared when there are so many.
_MAX_WAITING: Final = 1024
# Inputs of larger requests are not reported.
_MAX_INPUT_BYTES: Final = 4096
# Requests whose responses are kept together. The oldest ones are compared beyond the first number
# if both servers have sent as many responses, beyond the second one in any case.
_MAX_OPEN: Final = 256
_MAX_REQUESTS: Final = 8192
# Bytes that may wait for the other server, in either direction.
_MAX_WAITING_BYTES: Final = 64 << 20
_FINAL: Final = "parameter triton_final_response"


def with_end(responses: list[Response]) -> list[Response]:
    """Return responses whose end comes with the last one, if an empty one marks it.

    For ensembles, either may happen in both servers, by the timing of the steps' responses.
    """
    if len(responses) < 2:
        return responses
    *others, last, end = responses
    if end.outputs or end.failure is not None or end.fields.get(_FINAL) != "True":
        return responses
    return [*others, replace(last, fields={**last.fields, _FINAL: "True"})]


def _size_of(response: Response) -> int:
    return sum(len(tensor.raw) for tensor in response.outputs.values())


class _Responses:
    """Responses with one id, of both servers, that were not compared yet."""

    def __init__(self) -> None:
        self.sides: tuple[deque[Response], deque[Response]] = deque(), deque()

    def take_pairs(self) -> tuple[list[Response], list[Response]]:
        number = min(map(len, self.sides))
        old, new = ([side.popleft() for _ in range(number)] for side in self.sides)
        return old, new

    def take_all(self) -> tuple[list[Response], list[Response]]:
        old, new = (list(side) for side in self.sides)
        for side in self.sides:
            side.clear()
        return old, new


class StreamCopy:
    """The copy of one stream.

    Responses are compared by id; without ids, in their order. on_closed: called when both servers
    have ended the stream.
    """

    def __init__(
        self,
        begin: StreamEvent,
        channel: SocketChannel,
        tally: Tally,
        on_closed: Callable[[], None],
    ) -> None:
        self._side = begin.side
        self._tally = tally
        self._on_closed = on_closed
        self._model = ""
        self._inputs: dict[str, Tensors] = {}
        self._responses: dict[str, _Responses] = {}
        self._is_broken = False
        self._waiting_bytes = 0
        # Requests by model, as the proxy counts them, of which nothing was compared.
        self._unsettled: Counter[str] = Counter()
        self._statuses: dict[Side, str] = {}
        self._stream: ClientStream = channel.stream(
            begin.path,
            metadata=metadata_of(begin.headers),
            on_message=self._on_copied,
            on_close=self._on_copy_closed,
        )

    def on_event(self, event: StreamEvent) -> None:
        """Handle an event of the stream that the client sees."""
        match event.kind:
            case "request":
                self._unsettled[event.model] += 1
                self._on_request(event.message)
            case "response":
                self._add(self._side, event.message)
            case "half-close":
                self._stream.half_close()
            case "end":
                self._end(self._side, event.message.decode("latin-1"))
            case "cancel":
                self._break("the client cancelled the stream")
            case "abandon":
                # The proxy has counted the event that did not fit.
                self._break("")

    def time_out(self) -> None:
        """End the copy: the client's stream has ended long ago."""
        self._break("the copy timed out")

    def _on_request(self, message: bytes) -> None:
        self._model = self._model or model_of(message)
        request_id, inputs = grpc_inputs(message)
        if len(self._inputs) < _MAX_REQUESTS and len(message) <= _MAX_INPUT_BYTES:
            self._inputs[request_id] = inputs
        if self._stream.buffered_bytes > _MAX_WAITING_BYTES:
            self._break("the other server is too slow")
        else:
            self._stream.send(message)

    def _on_copied(self, message: bytes) -> None:
        self._add(self._side.other, message)

    def _on_copy_closed(self, error: RpcError | None) -> None:
        if error is not None and self._side not in self._statuses:
            self._break("the other server did not respond")
            return
        self._end(self._side.other, "0" if error is None else str(int(error.status)))

    def _add(self, side: Side, message: bytes) -> None:
        if self._is_broken:
            return
        try:
            request_id, response = stream_response(message)
        except (ValueError, LookupError, DecodeError):
            self._break("a response could not be read")
            return
        self._waiting_bytes += _size_of(response)
        if self._waiting_bytes > _MAX_WAITING_BYTES:
            self._break("the other server is too slow")
            return
        found = self._responses.setdefault(request_id, _Responses())
        found.sides[side].append(response)
        if len(self._responses) > _MAX_OPEN:
            self._close_oldest()
        if len(found.sides[side]) >= _MAX_WAITING:
            self._compare(request_id, *found.take_pairs())
            if len(found.sides[side]) >= _MAX_WAITING:
                self._compare(request_id, *found.take_all())

    def _close_oldest(self) -> None:
        request_id, oldest = next(iter(self._responses.items()))
        old, new = map(len, oldest.sides)
        if old != new and len(self._responses) <= _MAX_REQUESTS:
            # Let it wait, and look at the next one.
            self._responses[request_id] = self._responses.pop(request_id)
            return
        del self._responses[request_id]
        if old or new:
            self._compare(request_id, *map(with_end, oldest.take_all()))
        self._inputs.pop(request_id, None)

    def _compare(self, request_id: str, old: list[Any], new: list[Any]) -> None:
        self._waiting_bytes -= sum(map(_size_of, (*old, *new)))
        inputs = self._inputs.get(request_id, {})
        self._tally.add(Exchange(self._model, inputs, old, new, request_id=request_id))
        for model in self._unsettled:
            # More than one comparison may belong to a request.
            self._settle(Counter({model: 1}))
            break

    def _settle(self, settled: Counter[str]) -> None:
        self._tally.settled += settled
        self._unsettled -= settled

    def _end(self, side: Side, status: str) -> None:
        self._statuses[side] = status
        if len(self._statuses) == len(Side) and not self._is_broken:
            ends = [Response(fields={"stream status": self._statuses[side]}) for side in Side]
            if ends[0] != ends[1]:
                self._compare("", [ends[0]], [ends[1]])
            for request_id, responses in self._responses.items():
                old, new = map(with_end, responses.take_all())
                if old or new:
                    self._compare(request_id, old, new)
            self._close()

    def _break(self, reason: str) -> None:
        """Compare what both servers have sent, and end the copy."""
        if self._is_broken:
            return
        self._is_broken = True
        for request_id, responses in self._responses.items():
            old, new = responses.take_pairs()
            if old:
                self._compare(request_id, old, new)
        if reason:
            self._tally.add_not_compared(self._model, reason)
        self._stream.cancel()
        self._close()

    def _close(self) -> None:
        self._responses.clear()
        self._settle(self._unsettled)
        self._on_closed()
