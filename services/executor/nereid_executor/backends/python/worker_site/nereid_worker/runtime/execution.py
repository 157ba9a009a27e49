"""State of a batch that a worker executes, and of its requests until their last responses."""

from __future__ import annotations

import contextlib
import json
import threading
import weakref
from typing import TYPE_CHECKING, Any, Protocol

from ..connection import shared_tensors
from ..pb_utils.requests import NOT_RESCHEDULED
from ..pb_utils.responses import InferenceResponse, InferenceResponseSender
from ..protocol import wire
from ..values.errors import TritonError
from .error_text import ModelMisuse

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..connection.shared_tensors import MappedInputs
    from ..pb_utils.requests import InferenceRequest
    from ..protocol.channel import Channel

# The cache needs a bound, because outputs may have any number of shapes.
_MAX_METAS = 1024
_metas: dict[Any, bytes] = {}
_new_tuple = tuple.__new__

# The numbers of MemberControl in nereid.proto.
CANCEL, PAUSE, RESUME = 0, 1, 2


class ReplySink(Protocol):
    """The destination that a batch's replies are sent to."""

    def send_replies(
        self,
        batch: int,
        replies: list[wire.Reply],
        inputs: MappedInputs | None = None,
        *,
        executed: bool = False,
    ) -> None:
        """Send the replies in the list, and empty the list. Thread-safe.

        inputs: memory that replies may be views of; its owner reuses it once they are sent.
        """

    def send_from_finalizer(self, batch: int, reply: wire.Reply) -> None:
        """Send a reply without waiting for any lock that this thread may hold."""


class SocketReplies:
    """Sends replies to the executor over the socket."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    def send_replies(
        self,
        batch: int,
        replies: list[wire.Reply],
        inputs: MappedInputs | None = None,
        *,
        executed: bool = False,
    ) -> None:
        """Send the replies as a RESPONSES frame."""
        parts = wire.responses_parts(batch, wire.EXECUTED if executed else 0, replies)
        replies.clear()
        if inputs is not None:
            parts = [b"".join(parts)]
            inputs.copy_held()
        self._channel.send(wire.RESPONSES, parts)

    def send_from_finalizer(self, batch: int, reply: wire.Reply) -> None:
        """Send a reply as a RESPONSES frame, without waiting for a lock."""
        parts = wire.responses_parts(batch, 0, [reply])
        self._channel.send_from_finalizer(wire.RESPONSES, parts)


class RequestState:
    """State of a request whose responses a sender may send, even after execute() has returned."""

    def __init__(self, batch: BatchExecution, member: int, outputs: frozenset[str]) -> None:
        self._batch = batch
        self._outputs = outputs
        self.member = member
        self.responded = False
        # Senders wait for this event. It is made at the first pause, and cleared while the client
        # cannot keep up.
        self.resumed: threading.Event | None = None
        self.has_sender = False
        self.rescheduled = False

    def make_sender(self) -> InferenceResponseSender:
        """Return a new response sender. It is collected when the model drops it."""
        self.has_sender = True
        return InferenceResponseSender(
            self._send, self.is_cancelled, decoupled=self._batch.decoupled
        )

    def is_cancelled(self) -> bool:
        """Return whether the client has cancelled the request."""
        return self._batch.is_cancelled(self.member)

    def on_control(self, kind: int) -> None:
        """Handle a control: after PAUSE senders wait, after any other control they continue."""
        if kind == PAUSE:
            self.resumed = self.resumed or threading.Event()
            self.resumed.clear()
        elif self.resumed is not None:
            self.resumed.set()

    def _send(self, response: InferenceResponse | None, final: bool) -> None:
        if self.resumed is not None and self.member not in self._batch.cancelled:
            self.resumed.wait()
        if response is None:
            reply = wire.Reply(self.member, wire.EMPTY, b"", ())
        else:
            buffer = self._batch.output_buffers.get(self.member)
            reply = reply_of(self.member, self._outputs, response, buffer)
        self.responded = final
        if final:
            shares = self.member in self._batch.mapped_members
            self._batch.send_replies([reply], self._batch.inputs if shares else None)
        else:
            self._batch.send_replies([reply._replace(flags=reply.flags | wire.MORE)])

    def __del__(self) -> None:
        # The model holds neither the request nor its sender any more, so no response can follow.
        if not self.responded and self._batch.returned:
            text = "the model let go of a request without sending a final response"
            if self.rescheduled:
                if self._batch.iterative:
                    return
                text = NOT_RESCHEDULED
            self.responded = True
            with contextlib.suppress(wire.LostError, OSError):
                self._batch.send_from_finalizer(failure(self.member, TritonError(text)))


class BatchExecution:
    """State of a batch, from its execution until all of its requests have their last responses."""

    def __init__(
        self,
        number: int,
        sink: ReplySink,
        poll_controls: Callable[[], None],
        *,
        decoupled: bool,
        iterative: bool = False,
    ) -> None:
        self.number = number
        self._sink = sink
        self._poll_controls = poll_controls
        self.decoupled = decoupled
        self.iterative = iterative
        # Index: a member. Value: the outputs that its client has requested.
        self.requested_outputs: list[frozenset[str]] = []
        # The requests that execute() gets, their member numbers, and replies to the other requests.
        self.requests: list[InferenceRequest] = []
        self.members: list[int] = []
        self.rejected: list[wire.Reply] = []
        # The mapped inputs, their members, and each member's place for outputs.
        self.inputs: MappedInputs | None = None
        self.mapped_members: set[int] = set()
        self.output_buffers: dict[int, wire.Range] = {}
        self.cancelled: set[int] = set()
        # Latest deadline of the requests (time.monotonic_ns); 0 if any request has no deadline.
        self.deadline_ns = 0
        self.returned = False
        # Maps a member to its state while execute() runs. Afterwards only the model's senders hold
        # the states.
        self.held: dict[int, RequestState] = {}
        self._open_requests: weakref.WeakValueDictionary[int, RequestState] | None = None

    def state_of(self, request: InferenceRequest) -> RequestState:
        """Return a request's state; the first call makes it."""
        if request._state is None:
            member = request._member
            self.add_state(request, RequestState(self, member, self.requested_outputs[member]))
        return request._state  # type: ignore[return-value]  # set by this function alone

    def add_state(self, request: InferenceRequest, state: RequestState) -> None:
        """Add a request's state, and hold it while execute() runs."""
        request._state = self.held[request._member] = state
        if self._open_requests is None:
            self._open_requests = weakref.WeakValueDictionary()
        self._open_requests[request._member] = state

    @property
    def has_open_requests(self) -> bool:
        """True while response senders may still send responses for the batch."""
        return bool(self._open_requests)

    def map_input(self, member: int, place: wire.Range) -> memoryview:
        """Return an input, mapped if it is large; TritonModelException if its segment is gone."""
        copied = shared_tensors.copy_of(place)
        if copied is not None:
            return copied
        if self.inputs is None:
            self.inputs = shared_tensors.MappedInputs()
        self.mapped_members.add(member)
        return self.inputs.view(place)

    def is_cancelled(self, member: int) -> bool:
        """Read the controls that have arrived; return whether a member is cancelled."""
        if member not in self.cancelled:
            self._poll_controls()
        return member in self.cancelled

    def on_control(self, member: int, kind: int) -> None:
        """Handle a control of a member: CANCEL, PAUSE or RESUME."""
        if kind == CANCEL:
            self.cancelled.add(member)
        state = None if self._open_requests is None else self._open_requests.get(member)
        if state is not None:
            state.on_control(kind)

    def send_replies(self, replies: list[wire.Reply], inputs: MappedInputs | None = None) -> None:
        """Send replies of response senders; see `ReplySink.send_replies`."""
        self._sink.send_replies(self.number, replies, inputs)

    def send_from_finalizer(self, reply: wire.Reply) -> None:
        """Send a reply without waiting for any lock that this thread may hold."""
        self._sink.send_from_finalizer(self.number, reply)

    def finish(self, replies: list[wire.Reply]) -> None:
        """Send the replies that execute() has returned. Response senders send all other replies."""
        self.mark_responded(replies)
        self._sink.send_replies(self.number, replies, self.inputs, executed=True)
        self.release_requests()

    def mark_responded(self, replies: Sequence[wire.Reply]) -> None:
        """Mark members with a returned reply as responded, so that their senders send no error."""
        held = self.held
        if held:
            for reply in replies:
                if reply[0] in held:
                    held[reply[0]].responded = True

    def release_requests(self) -> None:
        """Drop the requests' states after execute(), so that only the model's senders hold them."""
        self.returned = True
        self.held = {}


def reply_of(
    member: int,
    requested_outputs: frozenset[str],
    response: InferenceResponse,
    buffer: wire.Range | None = None,
) -> wire.Reply:
    """Return the reply for a final response; write large outputs to the buffer if there is one."""
    if response._error is not None:
        return failure(member, response._error, by_model=True)
    message = []
    raws = []
    for tensor in response._output_tensors:
        if tensor._name in requested_outputs:
            message.append((tensor._name, tensor._datatype, tensor._shape))
            raws.append(tensor.raw())
    meta = _meta_of(tuple(message))
    if response._parameters:
        meta = b'{"outputs":%b,"parameters":%b}' % (meta, response._parameters.encode())
    tensors = raws if buffer is None else shared_tensors.write_outputs(raws, buffer)
    # This call is quicker than wire.Reply().
    return _new_tuple(wire.Reply, (member, 0, meta, tensors))


def failure(member: int, error: TritonError, *, by_model: bool = False) -> wire.Reply:
    """Return the reply for an error. by_model: the model itself responded with it."""
    meta = json.dumps([error.code().name, error.message(), by_model]).encode()
    return wire.Reply(member, wire.ERROR, meta, ())


def _meta_of(key: Any) -> bytes:
    meta = _metas.get(key)
    if meta is None:
        if len(_metas) >= _MAX_METAS:
            _metas.clear()
        meta = _metas[key] = json.dumps(key).encode()
    return meta


def check_response(response: Any, state: RequestState | None) -> None:
    """Raise ModelMisuse if execute() may not return this response for a request."""
    has_sender = state is not None and state.has_sender
    rescheduled = state is not None and state.rescheduled
    if rescheduled and response is not None:
        # Triton's text, including its typing error.
        raise ModelMisuse(
            "Expected a None object in the execute function return list for reschduled request, "
            f"found type '{type(response)}'."
        )
    if response is None:
        if not has_sender and not rescheduled:
            raise ModelMisuse(
                "Expected an 'InferenceResponse' object in the execute function return list, found "
                "None for a request whose response sender was not used."
            )
    elif not isinstance(response, InferenceResponse):
        raise ModelMisuse(
            "Expected an 'InferenceResponse' object in the execute function return list, found "
            f"type '{type(response)}'."
        )
    elif state is not None and has_sender and state.responded:
        raise ModelMisuse(
            "Expected a None object in the execute function return list for a request that was "
            "answered by its response sender."
        )
