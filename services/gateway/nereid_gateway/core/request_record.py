"""Record of one request: filled in on the way, and read once at its end."""

# layout: compiled

from __future__ import annotations

from time import monotonic_ns
from typing import TYPE_CHECKING, Any, Final

from nereid.core.errors import Cancelled
from nereid.core.wire.messages import payload_bytes
from nereid.observability.tracing import MAX_TRACED_TENSOR_BYTES, traced_inputs, traced_outputs
from nereid_gateway.core.tensors.tensor_memory import tensor_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nereid.core.wire.messages import (
        ErrorStatus,
        InferRequest,
        InferResponse,
        Payload,
        RequestTimings,
        TracedModel,
        TracedTensor,
    )
    from nereid.observability.tracing import Sampler
    from nereid_gateway.core.request_handle import OnResponse, RequestHandle

# Maximum number of responses in one trace.
_MAX_RESPONSES: Final = 128


class Sample:
    """Part of a sampled request's record that only its trace shows."""

    __slots__ = ("_has_tensors", "models", "parent", "sampler", "sends", "tensors")

    def __init__(self, sampler: Sampler, parent: bytes, has_tensors: bool = False) -> None:
        """Create the sample of a request. parent: the client's trace context."""
        self.sampler = sampler
        self.parent = parent
        # When each shown response came, and when it had been delivered.
        self.sends: list[tuple[int, int]] = []
        self.tensors: list[TracedTensor] = []
        self.models: tuple[TracedModel, ...] = ()
        self._has_tensors = has_tensors

    def copy_inputs(self, request: InferRequest) -> None:
        """Copy the inputs of the request if the trace shows tensors."""
        if self._has_tensors:
            data = [_copy(tensor_bytes(request, payload)) for payload in request.payloads]
            self.tensors += traced_inputs(request.head, data)

    def copy_response(self, response: InferResponse) -> bool:
        """Copy what the trace shows of a response. Return whether the trace shows the response."""
        if response.more:
            if (not response.head and response.error is None) or len(self.sends) >= _MAX_RESPONSES:
                return False
        else:
            self.models = response.trace
        if self._has_tensors and response.head and response.error is None:
            self.tensors += traced_outputs(response.head, map(_copy, response.payloads))
        return True


class RecordReader:
    """Reader of the records of requests that have ended.

    It is no Protocol: compiled code calls methods of a Protocol slowly.
    """

    def read_record(self, record: RequestRecord) -> None:
        """Read a record once."""
        raise NotImplementedError


class RequestRecord:
    """Record of one request, and its handle while it is pending."""

    __slots__ = (
        "_deliver",
        "_handle",
        "_reader",
        "call",
        "cancelled",
        "ended_ns",
        "error",
        "is_logged",
        "is_watched",
        "protocol",
        "received_ns",
        "request",
        "request_bytes",
        "responded_ns",
        "response_bytes",
        "response_head",
        "sample",
        "sender",
        "streamed",
        "submitted_ns",
        "timings",
        "tokenized_ns",
    )

    # Set by begin().
    request: InferRequest
    _deliver: OnResponse | None
    _reader: RecordReader
    # Set by measure(). The sample is `None` if the request is not traced; is_watched is true if a
    # console showed requests when this one was submitted; is_logged if the access log shows it.
    sample: Sample | None
    is_watched: bool
    is_logged: bool
    # Bytes of tensors, of a request that is logged.
    request_bytes: int
    response_bytes: int
    sender: Any
    # Set with the responses of a request that is measured.
    responded_ns: int
    response_head: bytes

    def __init__(
        self, protocol: str, received_ns: int, call: Any = None, streamed: bool = False
    ) -> None:
        """Create the record of a request that is whole. protocol: "http" or "grpc"."""
        self.protocol = protocol
        self.received_ns = received_ns
        # None once the request has ended.
        self.call = call
        self.streamed = streamed
        # `None` unless the scheduler was asked for them.
        self.timings: RequestTimings | None = None
        self.error: ErrorStatus | None = None
        self.cancelled = False
        # 0 unless the request is measured.
        self.submitted_ns = 0
        # When texts began and ended to be tokenized for the request, or zeros. `None` if it is not
        # one of several of a call.
        self.tokenized_ns: tuple[int, int] | None = None
        # 0 until the last response or the cancellation.
        self.ended_ns = 0
        self._handle: RequestHandle | None = None

    def begin(self, request: InferRequest, on_response: OnResponse, reader: RecordReader) -> None:
        """Begin to record. reader: gets the record when the request has ended."""
        self.request = request
        self._deliver = on_response
        self._reader = reader

    def measure(self, sample: Sample | None, is_watched: bool, is_logged: bool) -> None:
        """Record times and the response's head as well, and a sample if there is one."""
        self.sample = sample
        self.is_watched = is_watched
        self.is_logged = is_logged
        self.request_bytes = self.response_bytes = 0
        self.response_head = b""
        if is_logged:
            self.request_bytes = _bytes_of(self.request.payloads)
        self.submitted_ns = monotonic_ns()

    def keep_handle(self, handle: RequestHandle) -> None:
        """Keep the handle of the next step, unless the request has already ended."""
        # The handle refers to the record. Keeping it would hold the tensors until a garbage
        # collection.
        if not self.ended_ns:
            self._handle = handle

    @property
    def status(self) -> int:
        """The gRPC status code at the end."""
        if self.cancelled:
            return Cancelled.code
        return 0 if self.error is None else self.error.code

    def __call__(self, response: InferResponse) -> None:
        """Deliver a response. The last one ends the record, even if it cannot be delivered.

        The record itself is the next step's on_response: a bound method costs about 50 ns.
        """
        deliver = self._deliver
        if deliver is None:
            return
        is_last = not response.more
        if is_last and not self.ended_ns:
            self.error = response.error
            self.timings = response.timings
            # A front that cancels from here on cancels nothing.
            self._handle = None
        if self.submitted_ns:
            self._deliver_measured(deliver, response)
        elif is_last:
            try:
                deliver(response)
            finally:
                self._end()
        else:
            deliver(response)
        if is_last:
            self._release()

    def _deliver_measured(self, deliver: OnResponse, response: InferResponse) -> None:
        self.responded_ns = responded_ns = monotonic_ns()
        sample = self.sample
        is_shown = sample is not None and sample.copy_response(response)
        if self.is_logged:
            self.response_bytes += _bytes_of(response.payloads)
        try:
            deliver(response)
        finally:
            if sample is not None and is_shown:
                sample.sends.append((responded_ns, monotonic_ns()))
            if not response.more:
                self.response_head = response.head
                self._end()

    def cancel(self) -> None:
        """Cancel the request, and end the record."""
        handle = self._handle
        if handle is not None:
            self._handle = None
            self.cancelled = True
            handle.cancel()
            self._end()
            self._release()

    def set_flow(self, *, paused: bool) -> None:
        """Pause the responses, or let them continue."""
        if self._handle is not None:
            self._handle.set_flow(paused=paused)

    def _end(self) -> None:
        if not self.ended_ns:
            self.ended_ns = monotonic_ns()
            self._reader.read_record(self)

    def _release(self) -> None:
        """Drop what may refer to the record, so that no garbage collection has to find it."""
        self.call = None
        self._deliver = None


def _bytes_of(payloads: Sequence[Payload]) -> int:
    total = 0
    for payload in payloads:
        total += payload_bytes(payload)
    return total


def _copy(payload: object) -> bytes | None:
    """Return a copy, because a tensor's memory is reused, or None if the tensor is too large."""
    assert isinstance(payload, bytes | memoryview), "a reference without its segment"
    return bytes(payload) if len(payload) <= MAX_TRACED_TENSOR_BYTES else None
