"""Counters of a model version, for Triton's statistics extension and the metrics page.

As in Triton, requests that were never queued do not count.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from nereid.observability.metrics import CANCELED, CLOSING_REASONS, FAILURE_REASONS
from nereid.pb import kserve_pb2
from nereid_scheduler.core.measurements.client_outcomes import ClientOutcomes
from nereid_scheduler.core.measurements.latency_histograms import LatencyHistograms

if TYPE_CHECKING:
    from nereid.core.wire.messages import InferResponse
    from nereid_scheduler.core.requests.entry import Batch, Entry
    from nereid_scheduler.core.requests.execution import Execution

# Later responses are not counted separately, as readers always get the whole list.
MAX_RESPONSES: Final = 1024


@dataclass(slots=True)
class Duration:
    """Count of events, and the sum of their durations."""

    count: int = 0
    ns: int = 0

    def record(self, count: int, ns: int) -> None:
        """Add `count` events that took `ns` nanoseconds together."""
        self.count += count
        self.ns += ns

    def write(self, message: kserve_pb2.StatisticDuration) -> None:
        """Write the count and the sum to a message."""
        # Set even if all values are zero, as readers expect it.
        message.SetInParent()
        message.count = self.count
        message.ns = self.ns


@dataclass(slots=True)
class Compute:
    """Count of executions, and the sums of their durations."""

    count: int = 0
    input_ns: int = 0
    infer_ns: int = 0
    output_ns: int = 0

    def record_execution(self, execution: Execution) -> None:
        """Add an execution, or a request with the whole durations of its execution."""
        self.count += 1
        self.input_ns += execution.compute_input_ns
        self.infer_ns += execution.compute_infer_ns
        self.output_ns += execution.compute_output_ns

    def write(self, message: kserve_pb2.InferStatistics | kserve_pb2.InferBatchStatistics) -> None:
        """Write the count and the sums to a message."""
        Duration(self.count, self.input_ns).write(message.compute_input)
        Duration(self.count, self.infer_ns).write(message.compute_infer)
        Duration(self.count, self.output_ns).write(message.compute_output)


@dataclass(slots=True)
class _Responses:
    """Counters of the responses that have the same index within their requests."""

    success: Duration = field(default_factory=Duration)
    fail: Duration = field(default_factory=Duration)
    empty: Duration = field(default_factory=Duration)

    def record_response(self, response: InferResponse, took_ns: int) -> None:
        """Count a response as a success, a failure or an empty response."""
        if response.error is not None:
            self.fail.record(1, took_ns)
        elif response.head:
            self.success.record(1, took_ns)
        else:
            self.empty.record(1, took_ns)

    def write(self, message: kserve_pb2.InferResponseStatistics) -> None:
        """Write the counters to a message."""
        Duration(self.success.count, self.success.ns).write(message.compute_infer)
        Duration(self.success.count).write(message.compute_output)
        self.success.write(message.success)
        self.fail.write(message.fail)
        self.empty.write(message.empty_response)
        message.cancel.SetInParent()


@dataclass(slots=True)
class GpuShare:
    """Counters of one version's instances on one GPU."""

    success: int = 0
    inference_count: int = 0
    execution_count: int = 0
    request_ns: int = 0
    queue_ns: int = 0
    compute_input_ns: int = 0
    compute_infer_ns: int = 0
    compute_output_ns: int = 0

    def record_success(
        self, execution: Execution, size: int, request_ns: int, queue_ns: int
    ) -> None:
        """Add a successful request of this many rows."""
        self.success += 1
        self.inference_count += size
        self.request_ns += request_ns
        self.queue_ns += queue_ns
        self.compute_input_ns += execution.compute_input_ns
        self.compute_infer_ns += execution.compute_infer_ns
        self.compute_output_ns += execution.compute_output_ns


class ModelStatistics:
    """Counters of one model version. Cache hits are not part of compute times."""

    def __init__(self) -> None:
        self.inference_count = 0
        self.execution_count = 0
        self.last_inference_ms = 0
        # Monotonic: the order of uses must survive a clock that is set. As in Triton, a cache hit
        # is a use, but not an inference.
        self.last_used_ns = 0
        self.success = Duration()
        self.fail = Duration()
        self.queue_ns = 0
        self.cache_hit = Duration()
        self.cache_miss = Duration()
        self.compute = Compute()
        self.compute_by_batch_size: dict[int, Compute] = {}
        # Warm-up requests are not counted.
        self.first_execution_ns = 0
        self.histograms = LatencyHistograms()
        # While a rollout needs them.
        self._clients: ClientOutcomes | None = None
        # Counters for the metrics page only.
        self.failures = dict.fromkeys(FAILURE_REASONS, 0)
        self.refused = 0
        self.error_responses = 0
        self.batches_closed = dict.fromkeys(CLOSING_REASONS, 0)
        self.retries = 0
        # Elements of requests' inputs with padding, and of these the padding alone.
        self.input_elements = 0
        self.padding_elements = 0
        # For decoupled models: element n counts the n-th responses of all requests.
        self.responses: list[_Responses] = []
        # Key: the UUID of a GPU, which is a label of metrics.
        self.gpus: defaultdict[str, GpuShare] = defaultdict(GpuShare)

    @property
    def progress(self) -> int:
        """Number that changes whenever anything is counted."""
        counts = [self.inference_count, self.execution_count, self.refused, self.retries]
        durations = [self.success, self.fail, self.cache_hit, self.cache_miss]
        for response in self.responses:
            durations += response.success, response.fail, response.empty
        counts += [duration.count for duration in durations]
        return sum(counts) + sum(self.batches_closed.values())

    def measure_clients(self) -> ClientOutcomes:
        """Return the outcomes of clients' requests, from the first such call on."""
        if self._clients is None:
            self._clients = ClientOutcomes()
        return self._clients

    def end_measuring_clients(self) -> None:
        """Forget the outcomes of clients' requests."""
        self._clients = None

    def record_execution(self, batch: Batch, execution: Execution) -> None:
        """Count an executed batch; its requests are counted when they end."""
        self.execution_count += 1
        if self._clients is not None and any(entry.request.is_shadow for entry in batch.entries):
            self._clients.record_copies(execution.finished_ns)
        if execution.gpu_uuid:
            self.gpus[execution.gpu_uuid].execution_count += 1
        self.last_inference_ms = max(self.last_inference_ms, execution.epoch_ms)
        self.last_used_ns = max(self.last_used_ns, execution.finished_ns)
        # As on Triton, slots without a request are included.
        size = batch.size + batch.nulls
        by_size = self.compute_by_batch_size.get(size)
        if by_size is None:
            if not self.compute_by_batch_size:
                self.first_execution_ns = (
                    execution.compute_input_ns
                    + execution.compute_infer_ns
                    + execution.compute_output_ns
                )
            by_size = self.compute_by_batch_size[size] = Compute()
        by_size.record_execution(execution)

    def record_success(self, entry: Entry, execution: Execution, ended_ns: int) -> None:
        """Count a request that was executed, when it has had its last response."""
        size, request_ns = entry.valid.batch_size, ended_ns - entry.received_ns
        queue_ns = execution.started_ns - entry.enqueued_ns
        self.inference_count += size
        if entry.valid.padded_elements:
            self.input_elements += entry.valid.padded_elements
            self.padding_elements += entry.valid.padded_elements - entry.valid.elements
        self.success.record(1, request_ns)
        self.queue_ns += queue_ns
        self.compute.record_execution(execution)
        self.histograms.record_request(request_ns, ended_ns)
        self.histograms.record_queue(queue_ns)
        if self._clients is not None and not entry.request.is_shadow:
            self._clients.record_success(entry.received_ns, ended_ns)
        if execution.gpu_uuid:
            share = self.gpus[execution.gpu_uuid]
            share.record_success(execution, size, request_ns, queue_ns)

    def record_response(self, index: int, response: InferResponse, took_ns: int) -> None:
        """Count a request's response number `index`; took_ns: time since the response before."""
        responses = self.responses
        if index >= len(responses):
            if index >= MAX_RESPONSES:
                return
            responses.append(_Responses())
        responses[index].record_response(response, took_ns)

    def record_failure(self, entry: Entry, now_ns: int, reason: str) -> None:
        """Count an accepted request that expired, was cancelled or lost, or failed in execution."""
        self.fail.record(1, now_ns - entry.received_ns)
        if reason != CANCELED:
            self.histograms.record_failure(now_ns)
            if self._clients is not None and not entry.request.is_shadow:
                self._clients.record_failure()
        self.failures[reason] += 1

    def record_refusal(self, entry: Entry, now_ns: int) -> None:
        """Count a request that the full queue refuses."""
        self.refused += 1
        self.histograms.record_refusal(now_ns)
        if self._clients is not None and not entry.request.is_shadow:
            self._clients.record_failure()

    def record_error_response(self, entry: Entry, now_ns: int) -> None:
        """Count a successful request whose model has responded with an error."""
        self.error_responses += 1
        self.histograms.record_error_response(now_ns)
        if self._clients is not None and not entry.request.is_shadow:
            self._clients.record_error_response()

    def record_cache_hit(self, entry: Entry, now_ns: int) -> None:
        """Count a request whose response was found in the cache, so that it was never queued."""
        took_ns = now_ns - entry.received_ns
        self.success.record(1, took_ns)
        self.cache_hit.record(1, took_ns)
        self.histograms.record_request(took_ns, now_ns)
        if self._clients is not None:
            self._clients.record_success(entry.received_ns, now_ns)
        self.last_used_ns = now_ns

    def record_cache_miss(self, lookup_ns: int, insertion_ns: int) -> None:
        """Count a cache miss. `record_success` counts the lookup, but not the insertion."""
        self.success.ns += insertion_ns
        self.cache_miss.record(1, lookup_ns + insertion_ns)

    def to_proto(self, name: str, version: str) -> kserve_pb2.ModelStatistics:
        """Return the counters as a message of the statistics extension."""
        message = kserve_pb2.ModelStatistics(
            name=name,
            version=version,
            last_inference=self.last_inference_ms,
            inference_count=self.inference_count,
            execution_count=self.execution_count,
        )
        stats = message.inference_stats
        self.success.write(stats.success)
        self.fail.write(stats.fail)
        Duration(self.success.count, self.queue_ns).write(stats.queue)
        self.compute.write(stats)
        self.cache_hit.write(stats.cache_hit)
        self.cache_miss.write(stats.cache_miss)
        for size, compute in sorted(self.compute_by_batch_size.items()):
            compute.write(message.batch_stats.add(batch_size=size))
        for index, responses in enumerate(self.responses):
            responses.write(message.response_stats[str(index)])
        return message
