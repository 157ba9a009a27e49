"""Ends the records of one version's requests and batches: calls the readers of each.

An `Entry` is the record of a request, a `SentBatch` that of a batch; both are filled on the way.
Statistics, latencies, timelines and traces read them here, and are called from nowhere else.

A request that an instance has executed counts when the instance is done with it, even if its
client has cancelled it; any other request when it ends.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from nereid.core.errors import Cancelled, NereidError
from nereid.core.known_backends import ENSEMBLE_PLATFORM
from nereid.observability.metrics import BACKEND
from nereid.timeline.records import Wait
from nereid_scheduler.batching.sequences.controls import is_null
from nereid_scheduler.core.measurements.statistics import ModelStatistics
from nereid_scheduler.core.requests.entry import CACHE_LOOKUP, Batch, Entry
from nereid_scheduler.core.requests.request_timings import queue_delay_ns, timings_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nereid.core.wire.messages import InferResponse
    from nereid.model_config import ModelConfig
    from nereid_scheduler.batching.policies.latency_target import LatencyTarget
    from nereid_scheduler.core.instances.instance_batches import Member, SentBatch
    from nereid_scheduler.core.measurements.latencies import Latencies
    from nereid_scheduler.core.measurements.timeline import SchedulerTimeline
    from nereid_scheduler.core.requests.execution import Execution
    from nereid_scheduler.versions.tracing.traces import Traces

_now_ns: Final = time.monotonic_ns


class Records:
    """The readers of one version's records."""

    def __init__(
        self,
        config: ModelConfig,
        named: tuple[str, int],
        latencies: Latencies | None,
        timeline: SchedulerTimeline,
        traces: Traces,
    ) -> None:
        """named: name and number of the version."""
        self.statistics = ModelStatistics()
        # `None` if --metrics-config asks for neither histograms nor summaries.
        self.latencies = latencies
        self._timeline = None if timeline.recorder is None else timeline
        self._traces = traces
        self._named = named
        self._queue_delay_ns = queue_delay_ns(config)
        self._is_ensemble = config.platform == ENSEMBLE_PLATFORM

    # ---- batches

    def begin_batch(self, batch: Batch) -> None:
        """Count a batch that is to be sent."""
        self.statistics.batches_closed[batch.reason] += 1

    def end_batch(
        self, sent: SentBatch, execution: Execution, target: LatencyTarget | None = None
    ) -> None:
        """Record a batch that was executed, or lost: then it has no execution but this one."""
        batch, executed = sent.batch, sent.execution is not None
        if executed:
            self.statistics.record_execution(batch, execution)
        if sent.members is not None:
            for member in sent.members:
                if member.ended_ns:
                    self.end_member(member, execution, member.ended_ns)
        elif executed:
            self._end_whole(batch, execution, sent.failed)
        if self._timeline is not None:
            self._timeline.record_batch(self._named, sent, execution)
        if batch.traced:
            self._traces.end_batch(sent, execution, target)
            for entry in batch.entries:
                if entry.trace is not None:
                    entry.trace.end_attempt(
                        execution.started_ns, execution.finished_ns, lost=not executed
                    )

    def end_run(self, batch: Batch, execution: Execution, *, several: bool) -> None:
        """Record an ensemble's run. several: whether the first response is already recorded."""
        self.statistics.record_execution(batch, execution)
        if several:
            self.statistics.histograms.record_compute(execution, 1)
            self._end_executed(batch.entries[0], execution, execution.finished_ns)
        else:
            self._end_whole(batch, execution, ())

    def give_back(self, batch: Batch) -> None:
        """Forget the attempts of a batch that an instance gives back, as it has not begun it."""
        if batch.traced:
            for entry in batch.entries:
                if entry.trace is not None:
                    entry.trace.undo_attempt()

    # ---- requests of batches

    def _end_whole(self, batch: Batch, execution: Execution, failed: Sequence[Entry]) -> None:
        ended_ns = execution.finished_ns
        succeeded = 0
        for entry in batch.entries:
            if batch.nulls and is_null(entry):
                continue
            if failed and entry in failed:
                self.statistics.record_failure(entry, ended_ns, BACKEND)
                continue
            if self.latencies is not None:
                self.latencies.record_first_response(entry, ended_ns)
            succeeded += 1
            self._end_executed(entry, execution, ended_ns)
        self.statistics.histograms.record_compute(execution, succeeded)

    def end_member(self, member: Member, execution: Execution, ended_ns: int) -> None:
        """Count a member that has ended, unless it was rescheduled and has counted before."""
        if member.rescheduled or is_null(member.entry):
            return
        if member.failed:
            self.statistics.record_failure(member.entry, ended_ns, BACKEND)
        else:
            # Count a decoupled request as a success even if it had error responses, as on Triton.
            self.statistics.histograms.record_compute(execution, 1)
            self._end_executed(member.entry, execution, ended_ns)

    def _end_executed(self, entry: Entry, execution: Execution, ended_ns: int) -> None:
        self.statistics.record_success(entry, execution, ended_ns)
        if self.latencies is not None:
            self.latencies.record_success(entry, execution, ended_ns)

    # ---- requests

    def begin_trace(self, entry: Entry) -> None:
        """Give an entry with a trace context a trace, if it is sampled."""
        entry.trace = self._traces.begin(entry.request)

    def refuse(self, entry: Entry, error: NereidError, now_ns: int) -> None:
        """Record an entry that the full queue refuses."""
        self.statistics.record_refusal(entry, now_ns)
        if self._timeline is not None:
            self._timeline.record_ended(self._named, entry, now_ns, error.message, error.code)

    def retry(self, entry: Entry) -> None:
        """Count that an entry runs again, as an instance was lost."""
        entry.retries += 1
        self.statistics.retries += 1

    def record_response(
        self, entry: Entry, index: int, response: InferResponse, since_ns: int, now_ns: int
    ) -> None:
        """Record response number `index` of several. since_ns: the time of the one before."""
        self.statistics.record_response(index, response, now_ns - since_ns)
        if not index and self.latencies is not None:
            self.latencies.record_first_response(entry, now_ns)
        if entry.trace is not None:
            entry.trace.add_response(now_ns)
            self._traces.copy_response(entry.trace, response)

    def end_request(self, entry: Entry, response: InferResponse | None, failure: str) -> None:
        """Record an entry that has its last response; `None` means that it was cancelled.

        failure: the reason to count it as failed; empty if it was executed, or does not count.
        """
        if (
            failure
            or entry.execution is None
            or self._is_ensemble
            or entry.trace is not None
            or entry.request.wants_timings
        ):
            self._end_request(entry, response, failure, _now_ns())

    def _end_request(
        self, entry: Entry, response: InferResponse | None, failure: str, now_ns: int
    ) -> None:
        succeeded = response is not None and response.error is None
        if failure:
            self.statistics.record_failure(entry, now_ns, failure)
        elif succeeded and entry.state is CACHE_LOOKUP:
            self.statistics.record_cache_hit(entry, now_ns)
            if self.latencies is not None:
                self.latencies.record_cache_hit(entry, now_ns)
        if response is not None and entry.request.wants_timings and response.timings is None:
            response.timings = timings_of(entry, self._queue_delay_ns, now_ns, failed=not succeeded)
        if self._timeline is not None and (entry.execution is None or self._is_ensemble):
            outcome, status = self._outcome(entry, response)
            if outcome:
                self._timeline.record_ended(self._named, entry, now_ns, outcome, status)
        if entry.trace is not None:
            self._traces.end_request(entry.trace, entry, self._named, response, now_ns)

    def _outcome(self, entry: Entry, response: InferResponse | None) -> tuple[str, int]:
        """Return the outcome and status of a request; "" if its batch's record will show them."""
        if response is None:
            return "cancelled", Cancelled.code
        if response.error is not None:
            return response.error.message, response.error.code
        if self._is_ensemble:
            return "ensemble", 0
        return ("cache hit" if entry.state is CACHE_LOOKUP else ""), 0

    def end_miss(self, lookup_ns: int, insertion_ns: int) -> None:
        """Record what a cache miss has cost."""
        self.statistics.record_cache_miss(lookup_ns, insertion_ns)
        if self.latencies is not None:
            self.latencies.record_cache_miss(lookup_ns + insertion_ns)

    # ---- waits

    def end_wait(self, reason: str, from_ns: int, now_ns: int, requests: int) -> None:
        """Record a wait of this many requests."""
        if self._timeline is not None:
            name, number = self._named
            self._timeline.record_wait(Wait(name, str(number), reason, from_ns, now_ns, requests))
