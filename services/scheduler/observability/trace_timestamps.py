"""Sampled requests' times, gathered for the gateways that write them to files.

A request's answer brings its gateway the times of all models that took part: ensembles' steps and
what models asked of others have the request's trace id, and are kept here until the answer goes
out; with copies of their tensors, where the gateway wants these. Times are those that the models'
owners took anyway. Knows no gateway and no file.
"""

from __future__ import annotations

from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Final

from nereid.core.messages import SharedMemory, TracedModel, payload_bytes
from nereid.observability.tracing import (
    LARGEST_TENSOR_BYTES,
    child_of,
    inputs_shown,
    is_sampled,
    outputs_shown,
    shows_tensors,
)
from nereid.shm.mappings import LostError, read

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from nereid.core.messages import InferRequest, InferResponse, Payload, TracedTensor
    from nereid.observability.tracing import Span
    from nereid.services.scheduler.observability.request_traces import EntryTrace, Refusal
    from nereid.services.scheduler.requests.entry import Entry

_TRACE_ID: Final = slice(1, 17)
# Requests under way, and models that one of them goes through. Past these some are not told of.
_MOST_REQUESTS: Final = 1 << 16
_MOST_MODELS: Final = 1024
# Of a model: an answer may have many of them, and a decoupled model many answers.
_MOST_TENSORS: Final = 128
# Of the tensors of all requests under way; past these their names and shapes are told.
_MOST_TENSOR_BYTES: Final = 64 << 20


class TimeTraces:
    """A tracing.Traces. The first request with a trace id is the one that a client has sent."""

    def __init__(self) -> None:
        self._roots: dict[bytes, TimedEntry] = {}
        self._copied_bytes = 0

    def begin(self, request: InferRequest, now_ns: int) -> EntryTrace | None:
        context = request.trace_context
        if not is_sampled(context):
            return None
        trace_id = context[_TRACE_ID]
        root = self._roots.get(trace_id)
        trace = TimedEntry(self, context, now_ns, root)
        if root is None:
            if len(self._roots) >= _MOST_REQUESTS:
                self.forget(next(iter(self._roots.values())))
            self._roots[trace_id] = trace
        elif root.shows_tensors:
            # Later their memory may be others'.
            trace.show(inputs_shown, request.head, request.payloads)
        return trace

    def refused(self, refusal: Refusal) -> None:
        """Nothing is told of it, as on Triton."""
        context = refusal.request.trace_context
        root = self._roots.get(context[_TRACE_ID])
        if root is not None and root.parent == context:
            self.forget(root)

    def forget(self, root: TimedEntry) -> None:
        """The request is answered."""
        if self._roots.pop(root.context[_TRACE_ID], None) is not None:
            self._copied_bytes -= root.copied_bytes

    def copy(self, root: TimedEntry, payload: Payload) -> bytes | None:
        """A tensor to be kept until its request is answered; None: it is too much, or gone."""
        size_bytes = payload_bytes(payload)
        most_bytes = min(LARGEST_TENSOR_BYTES, _MOST_TENSOR_BYTES - self._copied_bytes)
        if size_bytes > most_bytes or self._roots.get(root.context[_TRACE_ID]) is not root:
            return None
        try:
            data = read(payload) if isinstance(payload, SharedMemory) else bytes(payload)
        except LostError:
            return None
        root.copied_bytes += size_bytes
        self._copied_bytes += size_bytes
        return data

    def close(self) -> None:
        pass


class TimedEntry:
    """A tracing.EntryTrace. root None: it is one."""

    __slots__ = (
        "_below",
        "_models",
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
        self, owner: TimeTraces, parent: bytes, received_ns: int, root: TimedEntry | None
    ) -> None:
        self._owner = owner
        self._root = root
        self._received_ns = received_ns
        # When an instance got it last; 0: none has.
        self._started_ns = 0
        # Of a root: what was below it.
        self._models: list[TracedModel] = []
        # By the contexts of entries that asked: when they first did, and were last answered.
        self._below: dict[bytes, tuple[int, int]] = {}
        self._tensors: list[TracedTensor] = []
        # Its answers are shown as they come.
        self._responded = False
        self.parent = parent
        self.context = child_of(parent)
        # Of a root: whether what is below it shows tensors, and how much of them is kept.
        self.shows_tensors = shows_tensors(parent)
        self.copied_bytes = 0

    # Attempts and lookups are no models: what is below them is below the request.
    @property
    def attempt(self) -> bytes:
        return self.context

    @property
    def lookup(self) -> bytes:
        return b""

    def begin_attempt(self, now_ns: int) -> bytes:
        self._started_ns = now_ns
        return self.context

    def begin_steps(self) -> bytes:
        return self.context

    def begin_lookup(self) -> bytes:
        return self.context

    def end_attempt(self, entry: Entry, attempt: Span, *, lost: bool) -> None:
        pass

    def record_batch(self, span: Span) -> None:
        pass

    def responded(self, response: InferResponse, now_ns: int) -> None:  # noqa: ARG002 - the other kind's
        self._responded = True
        self._show_outputs(response)

    def end_lookup(self, started_ns: int, ended_ns: int, *, hit: bool) -> None:
        pass

    def end(
        self, entry: Entry, model: tuple[str, int], response: InferResponse | None, now_ns: int
    ) -> None:
        name, version = model
        request_id = entry.request.request_id
        times = self._times(entry, now_ns)
        if response is not None and not self._responded:
            self._show_outputs(response)
        tensors = tuple(self._tensors)
        told = TracedModel(self.context, self.parent, name, version, request_id, times, tensors)
        if self._root is None:
            self._owner.forget(self)
            if response is not None:
                response.trace = (told, *self._models)
        else:
            self._root._add(told)  # noqa: SLF001

    def _add(self, model: TracedModel) -> None:
        """Of a root: what was below it."""
        if len(self._models) < _MOST_MODELS:
            self._models.append(model)
            (_, asked_ns), *_, (_, responded_ns) = model.times
            first_ns, last_ns = self._below.get(model.parent, (asked_ns, responded_ns))
            self._below[model.parent] = min(first_ns, asked_ns), max(last_ns, responded_ns)

    def show(
        self,
        shown: Callable[[bytes, Iterable[bytes | None]], Iterable[TracedTensor]],
        head: bytes,
        payloads: Iterable[Payload],
    ) -> None:
        """Keep tensors of one that is below another."""
        if self._root is not None and len(self._tensors) < _MOST_TENSORS:
            copies = map(partial(self._owner.copy, self._root), payloads)
            self._tensors += islice(shown(head, copies), _MOST_TENSORS)

    def _show_outputs(self, response: InferResponse) -> None:
        if self._root is not None and self._root.shows_tensors and response.error is None:
            self.show(outputs_shown, response.head, response.payloads)

    def _times(self, entry: Entry, now_ns: int) -> tuple[tuple[str, int], ...]:
        queued_ns = max(self._received_ns, entry.enqueued_ns)
        return (
            ("REQUEST_START", self._received_ns),
            ("QUEUE_START", queued_ns),
            *self._compute(entry, now_ns),
            ("REQUEST_END", now_ns),
        )

    def _compute(self, entry: Entry, now_ns: int) -> tuple[tuple[str, int], ...]:
        """None of a request that no instance has had: an ensemble's, say, or one from the cache."""
        if not self._started_ns:
            return ()
        started_ns, ended_ns = self._started_ns, now_ns
        input_ns = output_ns = 0
        execution = entry.execution
        if execution is not None and execution.finished_ns >= started_ns:
            # The instance tells how long it took, not when: what lies between it and here is
            # taken to be as long on the way there as on the way back.
            input_ns, output_ns = execution.compute_input_ns, execution.compute_output_ns
            took_ns = input_ns + execution.compute_infer_ns + output_ns
            away_ns = max(0, execution.finished_ns - started_ns - took_ns) // 2
            started_ns, ended_ns = started_ns + away_ns, execution.finished_ns - away_ns
            # But that is a guess, and what it asked of others it asked in between.
            first_ns, last_ns = (self._root or self)._below.get(  # noqa: SLF001
                self.context, (started_ns, ended_ns)
            )
            late_ns = max(0, last_ns - ended_ns) or min(0, first_ns - started_ns)
            late_ns = max(-away_ns, min(late_ns, away_ns))
            started_ns, ended_ns = started_ns + late_ns, ended_ns + late_ns
        input_end_ns = min(started_ns + input_ns, ended_ns)
        return (
            ("COMPUTE_START", started_ns),
            ("COMPUTE_INPUT_END", input_end_ns),
            ("COMPUTE_OUTPUT_START", max(input_end_ns, ended_ns - output_ns)),
            ("COMPUTE_END", ended_ns),
        )
