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
    is_sampled,
    shows_tensors,
    traced_inputs,
    traced_outputs,
)
from nereid.shm.mappings import SegmentLostError, read
from nereid.shm.reference import SharedMemory
from nereid_scheduler.core.requests.request_trace import RequestTrace
from nereid_scheduler.versions.tracing.traces import Traces

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from nereid.core.wire.messages import InferRequest, InferResponse, Payload, TracedTensor
    from nereid_scheduler.core.requests.entry import Entry
    from nereid_scheduler.versions.tracing.traces import RefusedRequest

# Beyond the first limit the oldest request is dropped. Beyond the second no further model is
# traced.
_MAX_REQUESTS: Final = 1 << 16
_MAX_MODELS: Final = 1024
# Per model: a response may have many tensors, and a decoupled model many responses.
_MAX_TENSORS: Final = 128
# For all pending requests together; beyond it, traces show only names and shapes.
_MAX_TENSOR_BYTES: Final = 64 << 20


class _Root:
    """Timestamps collected for a client's request, the first one with its trace id."""

    __slots__ = ("context", "copied_bytes", "models", "nested", "parent")

    def __init__(self, trace: RequestTrace) -> None:
        self.context = trace.context
        self.parent = trace.parent
        self.copied_bytes = 0
        # Models that took part, beside the one that the client has named.
        self.models: list[TracedModel] = []
        # Maps a caller's context to the first start and last end of its requests.
        self.nested: dict[bytes, tuple[int, int]] = {}

    def add_model(self, model: TracedModel) -> None:
        if len(self.models) < _MAX_MODELS:
            self.models.append(model)
            (_, started_ns), *_, (_, ended_ns) = model.times
            first_ns, last_ns = self.nested.get(model.parent, (started_ns, ended_ns))
            self.nested[model.parent] = min(first_ns, started_ns), max(last_ns, ended_ns)


class TimestampTraces(Traces):
    """Reader that makes timestamps. Attempts, lookups and batches have none."""

    def __init__(self, max_tensor_bytes: int = _MAX_TENSOR_BYTES) -> None:
        self._max_tensor_bytes = max_tensor_bytes
        self._roots: dict[bytes, _Root] = {}
        self._copied_bytes = 0

    def begin(self, request: InferRequest) -> RequestTrace | None:
        """Return the record for a request, or `None` if it is not sampled."""
        context = request.trace_context
        if not is_sampled(context):
            return None
        trace_id = context[TRACE_ID]
        trace = RequestTrace(context, has_spans=False)
        root = self._roots.get(trace_id)
        if root is None:
            if len(self._roots) >= _MAX_REQUESTS:
                self._forget(next(iter(self._roots.values())))
            root = self._roots[trace_id] = _Root(trace)
        trace.root = root
        # Their shared memory may be reused later.
        self._copy_tensors(trace, traced_inputs, request.head, request.payloads)
        return trace

    def refused(self, refusal: RefusedRequest) -> None:
        """Forget the request, as refused requests are not traced (as in Triton)."""
        context = refusal.request.trace_context
        root = self._roots.get(context[TRACE_ID])
        if root is not None and root.parent == context:
            self._forget(root)

    def copy_response(self, trace: RequestTrace, response: InferResponse) -> None:
        """Copy the outputs of a model below the client's request."""
        if response.error is None:
            self._copy_tensors(trace, traced_outputs, response.head, response.payloads)

    def end_request(
        self,
        trace: RequestTrace,
        entry: Entry,
        model: tuple[str, int],
        response: InferResponse | None,
        now_ns: int,
    ) -> None:
        """Add the timestamps to the client's response or, for any other request, to the root."""
        root: _Root = trace.root
        if response is not None and not trace.responses_ns:
            self.copy_response(trace, response)
        traced = TracedModel(
            trace.context,
            trace.parent,
            *model,
            entry.request.request_id,
            _times(trace, entry, now_ns),
            tuple(trace.tensors),
        )
        if root.context != trace.context:
            root.add_model(traced)
            return
        self._forget(root)
        if response is not None:
            response.trace = (traced, *root.models)

    def _forget(self, root: _Root) -> None:
        if self._roots.pop(root.context[TRACE_ID], None) is not None:
            self._copied_bytes -= root.copied_bytes

    def _copy_tensors(
        self,
        trace: RequestTrace,
        shown: Callable[[bytes, Iterable[bytes | None]], Iterable[TracedTensor]],
        head: bytes,
        payloads: Iterable[Payload],
    ) -> None:
        """Copy tensors of a model below the root; the gateway has the root's own tensors."""
        root: _Root = trace.root
        if (
            root.context != trace.context
            and shows_tensors(root.parent)
            and len(trace.tensors) < _MAX_TENSORS
        ):
            copies = map(partial(self._copy, root), payloads)
            trace.tensors += islice(shown(head, copies), _MAX_TENSORS)

    def _copy(self, root: _Root, payload: Payload) -> bytes | None:
        """Return a copy of a tensor; `None` if it is too large or its memory was lost."""
        size_bytes = payload_bytes(payload)
        max_bytes = min(MAX_TRACED_TENSOR_BYTES, self._max_tensor_bytes - self._copied_bytes)
        trace_id = root.context[TRACE_ID]
        if size_bytes > max_bytes or self._roots.get(trace_id) is not root:
            return None
        try:
            data = read(payload) if isinstance(payload, SharedMemory) else bytes(payload)
        except SegmentLostError:
            return None
        root.copied_bytes += size_bytes
        self._copied_bytes += size_bytes
        return data


def _times(trace: RequestTrace, entry: Entry, now_ns: int) -> tuple[tuple[str, int], ...]:
    queued_ns = max(entry.received_ns, entry.enqueued_ns)
    return (
        ("REQUEST_START", entry.received_ns),
        ("QUEUE_START", queued_ns),
        *_compute_times(trace, entry, now_ns),
        ("REQUEST_END", now_ns),
    )


def _compute_times(trace: RequestTrace, entry: Entry, now_ns: int) -> tuple[tuple[str, int], ...]:
    if not trace.started_ns:
        return ()
    started_ns, ended_ns = trace.started_ns, now_ns
    input_ns = output_ns = 0
    execution = entry.execution
    if execution is not None and execution.finished_ns >= started_ns:
        # The instance reports durations only. Assume equal times for both ways.
        input_ns, output_ns = execution.compute_input_ns, execution.compute_output_ns
        # The batch may have waited at the instance.
        started_ns = max(started_ns, execution.started_ns)
        took_ns = input_ns + execution.compute_infer_ns + output_ns
        latency_ns = max(0, execution.finished_ns - started_ns - took_ns) // 2
        started_ns, ended_ns = started_ns + latency_ns, execution.finished_ns - latency_ns
        # Shift the guessed times so that nested requests lie within the execution.
        nested: dict[bytes, tuple[int, int]] = trace.root.nested
        first_ns, last_ns = nested.get(trace.context, (started_ns, ended_ns))
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
