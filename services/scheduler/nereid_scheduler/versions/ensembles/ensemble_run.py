"""State of one request to an ensemble; EnsembleDispatcher decides what follows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nereid.core.wire.messages import RequestTimings
from nereid_scheduler.core.requests.request_timings import CACHE, QUEUE, combined
from nereid_scheduler.versions.ensembles.graphs.graph import GraphRun
from nereid_scheduler.versions.ensembles.graphs.sequence_place import place_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nereid.core.wire.messages import InferResponse
    from nereid_scheduler.core.requests.entry import Batch, Entry
    from nereid_scheduler.versions.ensembles.graphs.graph import StepCall
    from nereid_scheduler.versions.ensembles.graphs.sequence_place import SequencePlace, StatedPlace
    from nereid_scheduler.versions.ensembles.step_tensors import (
        ParsedHead,
        SegmentLease,
        StepHeads,
        Tensor,
    )
    from nereid_scheduler.versions.ensembles.tensor_rows import TensorRows
    from nereid_scheduler.versions.records import Records


class EnsembleRun:
    """One attempt to serve a request. After a loss of tensors, another attempt follows."""

    __slots__ = (
        "batch",
        "calls",
        "compute_ns",
        "entry",
        "graph",
        "head",
        "last_response_ns",
        "leases",
        "moved",
        "path",
        "paths",
        "paused",
        "place",
        "responses_sent",
        "stale",
        "started_ns",
        "throttled",
        "trace_context",
    )

    def __init__(
        self, batch: Batch, head: ParsedHead, started_ns: int, rows: TensorRows | None = None
    ) -> None:
        """rows: of an ensemble whose steps have conditions."""
        self.batch = batch
        self.entry = batch.entries[0]
        self.head = head
        self.graph: GraphRun[Tensor] = GraphRun(head.plan, rows)
        self.calls: dict[StepCall[Tensor], tuple[StepHeads, Entry]] = {}
        self.leases: set[SegmentLease] = set()
        self.started_ns = started_ns
        self.responses_sent = 0
        self.last_response_ns = started_ns
        # `paused`: by the client. `throttled`: calls that later steps cannot keep up with.
        self.paused = False
        self.throttled: set[StepCall[Tensor]] = set()
        # True if an instance of another revision than the model's current one executed a step.
        self.stale = False
        # `moved`: True once a step's response has stated another place for the steps after it.
        self.place = place_of(self.entry.request.parameters)
        self.moved = False
        # Sums of times, if timings are wanted: up to the latest response, and to each open call.
        self.path: RequestTimings | None = None
        self.paths: dict[StepCall[Tensor], RequestTimings | None] = {}
        # Sums of all steps for inputs, models and outputs.
        self.compute_ns = (0, 0, 0)
        trace = self.entry.trace
        context = self.entry.request.trace_context
        self.trace_context = context if trace is None else trace.begin_steps()

    def place_outputs(
        self, entry: Entry, outputs: dict[str, Tensor], stated: StatedPlace | None
    ) -> dict[str, Tensor]:
        """Return a step's outputs, marked with the sequence place of the steps that read them."""
        own = place_of(entry.request.parameters) if self.moved else self.place
        place = own if stated is None else stated.behind(own)
        if not self.moved and place == self.place:
            return outputs
        self.moved = True
        return {name: tensor._replace(place=place) for name, tensor in outputs.items()}

    def place_behind(self, tensors: Iterable[Tensor | None]) -> SequencePlace:
        """Return a step's place: that of the first tensor with one, or else the request's."""
        if self.moved:
            for tensor in tensors:
                if tensor is not None and tensor.place is not None:
                    return tensor.place
        return self.place

    def on_response(
        self, call: StepCall[Tensor], response: InferResponse
    ) -> tuple[StepHeads, Entry]:
        """Record a response to a call; return the call's heads and entry."""
        called = self.calls[call]
        if not response.more:
            del self.calls[call]
        if self.entry.request.wants_timings:
            self._record_timings(call, response)
        return called

    def _record_timings(self, call: StepCall[Tensor], response: InferResponse) -> None:
        """Set `path` for a call. Only the last response to a call has the call's own times."""
        if response.more:
            self.path = self.paths.get(call)
            return
        path = self.paths.pop(call, None)
        self.path = path if response.timings is None else combined(path, response.timings)

    def record_step(self, entry: Entry, revision: bytes) -> None:
        """Record an executed or cached step. revision: present revision of the step's model."""
        execution = entry.execution
        if execution is None:
            self.stale = self.stale or entry.revision != revision
        else:
            before = self.compute_ns
            self.compute_ns = (
                before[0] + execution.compute_input_ns,
                before[1] + execution.compute_infer_ns,
                before[2] + execution.compute_output_ns,
            )
            self.stale = self.stale or execution.revision != revision

    def record_response(self, records: Records, response: InferResponse, now_ns: int) -> None:
        """Record a response of a decoupled ensemble."""
        sent, since_ns = self.responses_sent, self.last_response_ns
        records.record_response(self.entry, sent, response, since_ns, now_ns)
        self.responses_sent += 1
        self.last_response_ns = now_ns

    def timings(self) -> RequestTimings:
        """Return the timings of the chain of steps before the response, without parallel steps."""
        entry = self.entry
        queued_ns = self.started_ns - entry.enqueued_ns
        own = RequestTimings(((QUEUE, queued_ns),), attempt=entry.retries + 1)
        if entry.cache_lookup is not None:
            lookup = (CACHE, entry.enqueued_ns - entry.received_ns)
            own = own._replace(phases=(lookup, *own.phases))
        return own if self.path is None else combined(own, self.path)

    # ---- calls whose responses wait

    def set_paused(self, *, paused: bool) -> None:
        """Pause all calls of a client that cannot keep up with responses, or resume them."""
        self.paused = paused
        for call in self.calls:
            self._set_flow(call)

    def throttle(self, call: StepCall[Tensor], max_open: int) -> None:
        """Pause calls that later steps cannot keep up with. call: the one that has responded.

        max_open: maximum number of calls below one call; at half of it the call goes on.
        """
        for source in (call, *call.ancestors()):
            if source.open_below >= max_open and source not in self.throttled:
                self.throttled.add(source)
            elif source in self.throttled and source.open_below <= max_open // 2:
                self.throttled.discard(source)
            elif not self.paused or source is not call:
                continue
            self._set_flow(source)

    def _set_flow(self, call: StepCall[Tensor]) -> None:
        if call in self.calls:
            _, entry = self.calls[call]
            entry.set_flow(paused=self.paused or call in self.throttled)
