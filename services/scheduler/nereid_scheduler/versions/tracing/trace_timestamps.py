"""Collects timestamps of sampled requests for the gateways that write them to trace files.

A client's response has the timestamps of all models that took part. Requests of ensembles' steps
and models have its trace id; their timestamps are kept here until it is sent.
"""

from __future__ import annotations

from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Final

from nereid.core.wire.messages import TracedModel, payload_bytes
from nereid.core.wire.trace_context import TRACE_ID
from nereid.observability.tracing import (
    MAX_TRACED_TENSOR_BYTES,
    child_context,
    is_sampled,
    shows_tensors,
    traced_inputs,
    traced_outputs,
)
from nereid.shm.mappings import SegmentLostError, read
from nereid.shm.reference import SharedMemory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from nereid.core.wire.messages import InferRequest, InferResponse, Payload, TracedTensor
    from nereid.observability.tracing import Span
    from nereid_scheduler.core.requests.entry import Entry
    from nereid_scheduler.core.requests.entry_trace import EntryTrace, RefusedRequest

# Beyond these limits, the oldest request is dropped, and further models are not traced.
_MAX_REQUESTS: Final = 1 << 16
_MAX_MODELS: Final = 1024
# Per model: a response may have many tensors, and a decoupled model many responses.
_MAX_TENSORS: Final = 128
# For all pending requests together; beyond it, traces show only names and shapes.
_MAX_TENSOR_BYTES: Final = 64 << 20


class TimestampTraces:
    """Factory of timestamp traces. The first request with a trace id is the trace's *root*."""

    def __init__(self, max_tensor_bytes: int = _MAX_TENSOR_BYTES) -> None:
        self._max_tensor_bytes = max_tensor_bytes
        self._roots: dict[bytes, TimestampTrace] = {}
        self._copied_bytes = 0

    def begin(self, request: InferRequest, now_ns: int) -> EntryTrace | None:
        """Return the trace of a request, or `None` if it is not sampled."""
        context = request.trace_context
        if not is_sampled(context):
            return None
        trace_id = context[TRACE_ID]
        root = self._roots.get(trace_id)
        trace = TimestampTrace(self, context, now_ns, root)
        if root is None:
            if len(self._roots) >= _MAX_REQUESTS:
                self.forget_request(next(iter(self._roots.values())))
            self._roots[trace_id] = trace
        elif root.shows_tensors:
            # Their shared memory may be reused later.
            trace.copy_tensors(traced_inputs, request.head, request.payloads)
        return trace

    def refused(self, refusal: RefusedRequest) -> None:
        """Forget the request, as refused requests are not traced (as in Triton)."""
        context = refusal.request.trace_context
        root = self._roots.get(context[TRACE_ID])
        if root is not None and root.parent == context:
            self.forget_request(root)

    def forget_request(self, root: TimestampTrace) -> None:
        """Forget a client's request that has ended."""
        if self._roots.pop(root.context[TRACE_ID], None) is not None:
            self._copied_bytes -= root.copied_bytes

    def copy_tensor(self, root: TimestampTrace, payload: Payload) -> bytes | None:
        """Return a copy of a tensor; `None` if it is too large or its memory was lost."""
        size_bytes = payload_bytes(payload)
        max_bytes = min(MAX_TRACED_TENSOR_BYTES, self._max_tensor_bytes - self._copied_bytes)
        if size_bytes > max_bytes or self._roots.get(root.context[TRACE_ID]) is not root:
            return None
        try:
            data = read(payload) if isinstance(payload, SharedMemory) else bytes(payload)
        except SegmentLostError:
            return None
        root.copied_bytes += size_bytes
        self._copied_bytes += size_bytes
        return data

    def close(self) -> None:
        """Do nothing, as timestamps are sent with responses and not exported."""


class TimestampTrace:
    """EntryTrace that consists of timestamps. It has no root if it is the client's request."""

    __slots__ = (
        "_models",
        "_nested",
        "_owner",
        "_received_ns",
        "_responded",
        "_root",
        "_started_ns",
        "_tensors",
        "context",
        "copied_bytes",
        "parent",
        "shows_tensors",
    )

    def __init__(
        self, owner: TimestampTraces, parent: bytes, received_ns: int, root: TimestampTrace | None
    ) -> None:
        self._owner = owner
        self._root = root
        self._received_ns = received_ns
        # When the request was last sent to an instance; 0 if it never was.
        self._started_ns = 0
        self._models: list[TracedModel] = []
        # In a root: maps a caller's context to the first start and last end of its requests.
        self._nested: dict[bytes, tuple[int, int]] = {}
        self._tensors: list[TracedTensor] = []
        # True if tensors were copied with each response; otherwise at the end of the request.
        self._responded = False
        self.parent = parent
        self.context = child_context(parent)
        # In a root: whether tensors of models below are traced, and how many bytes were copied.
        self.shows_tensors = shows_tensors(parent)
        self.copied_bytes = 0

    # Attempts and lookups are not traced. What happens during them is traced below the request.
    @property
    def attempt(self) -> bytes:
        """Trace context of the request, since attempts have no context of their own."""
        return self.context

    @property
    def lookup(self) -> bytes:
        """Empty trace context, as lookups are not traced."""
        return b""

    def begin_attempt(self, now_ns: int) -> bytes:
        """Keep the time of the attempt; return the trace context of the request."""
        self._started_ns = now_ns
        return self.context

    def begin_steps(self) -> bytes:
        """Return the context of the request, for an ensemble's steps."""
        return self.context

    def begin_lookup(self) -> bytes:
        """Return the context of the request, since lookups are not traced."""
        return self.context

    def end_attempt(
        self,
        entry: Entry,  # noqa: ARG002 - of EntryTrace
        attempt: Span,  # noqa: ARG002
        started_ns: int,
        *,
        lost: bool,  # noqa: ARG002
    ) -> None:
        """Keep the time at which the attempt began."""
        self._started_ns = started_ns

    def undo_attempt(self) -> None:
        """Forget the time of an attempt that the instance has not begun."""
        self._started_ns = 0

    def record_batch(self, span: Span) -> None:
        """Do nothing, as batches are not traced."""

    def responded(self, response: InferResponse, now_ns: int) -> None:  # noqa: ARG002 - of EntryTrace
        """Copy the tensors of a decoupled model's response."""
        self._responded = True
        self._copy_outputs(response)

    def end_lookup(self, started_ns: int, ended_ns: int, *, hit: bool) -> None:
        """Do nothing, as lookups are not traced."""

    def end(
        self, entry: Entry, model: tuple[str, int], response: InferResponse | None, now_ns: int
    ) -> None:
        """Add the timestamps to the client's response or, for any other request, to the root."""
        name, version = model
        request_id = entry.request.request_id
        times = self._times(entry, now_ns)
        if response is not None and not self._responded:
            self._copy_outputs(response)
        tensors = tuple(self._tensors)
        traced = TracedModel(self.context, self.parent, name, version, request_id, times, tensors)
        if self._root is None:
            self._owner.forget_request(self)
            if response is not None:
                response.trace = (traced, *self._models)
        else:
            self._root._add_model(traced)  # noqa: SLF001

    def _add_model(self, model: TracedModel) -> None:
        if len(self._models) < _MAX_MODELS:
            self._models.append(model)
            (_, started_ns), *_, (_, ended_ns) = model.times
            first_ns, last_ns = self._nested.get(model.parent, (started_ns, ended_ns))
            self._nested[model.parent] = min(first_ns, started_ns), max(last_ns, ended_ns)

    def copy_tensors(
        self,
        shown: Callable[[bytes, Iterable[bytes | None]], Iterable[TracedTensor]],
        head: bytes,
        payloads: Iterable[Payload],
    ) -> None:
        """Copy tensors of a model below the root; the gateway has the root's own tensors."""
        if self._root is not None and len(self._tensors) < _MAX_TENSORS:
            copies = map(partial(self._owner.copy_tensor, self._root), payloads)
            self._tensors += islice(shown(head, copies), _MAX_TENSORS)

    def _copy_outputs(self, response: InferResponse) -> None:
        if self._root is not None and self._root.shows_tensors and response.error is None:
            self.copy_tensors(traced_outputs, response.head, response.payloads)

    def _times(self, entry: Entry, now_ns: int) -> tuple[tuple[str, int], ...]:
        queued_ns = max(self._received_ns, entry.enqueued_ns)
        return (
            ("REQUEST_START", self._received_ns),
            ("QUEUE_START", queued_ns),
            *self._compute_times(entry, now_ns),
            ("REQUEST_END", now_ns),
        )

    def _compute_times(self, entry: Entry, now_ns: int) -> tuple[tuple[str, int], ...]:
        if not self._started_ns:
            return ()
        started_ns, ended_ns = self._started_ns, now_ns
        input_ns = output_ns = 0
        execution = entry.execution
        if execution is not None and execution.finished_ns >= started_ns:
            # The instance reports durations only. Assume equal times for both ways.
            input_ns, output_ns = execution.compute_input_ns, execution.compute_output_ns
            took_ns = input_ns + execution.compute_infer_ns + output_ns
            latency_ns = max(0, execution.finished_ns - started_ns - took_ns) // 2
            started_ns, ended_ns = started_ns + latency_ns, execution.finished_ns - latency_ns
            # Shift the guessed times so that nested requests lie within the execution.
            first_ns, last_ns = (self._root or self)._nested.get(  # noqa: SLF001
                self.context, (started_ns, ended_ns)
            )
            shift_ns = max(0, last_ns - ended_ns) or min(0, first_ns - started_ns)
            shift_ns = max(-latency_ns, min(shift_ns, latency_ns))
            started_ns, ended_ns = started_ns + shift_ns, ended_ns + shift_ns
        input_end_ns = min(started_ns + input_ns, ended_ns)
        return (
            ("COMPUTE_START", started_ns),
            ("COMPUTE_INPUT_END", input_end_ns),
            ("COMPUTE_OUTPUT_START", max(input_end_ns, ended_ns - output_ns)),
            ("COMPUTE_END", ended_ns),
        )
