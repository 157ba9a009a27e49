"""The figures of one version over a window of time, from two looks at a mesh."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from nereid.observability import metrics

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nereid.facts.mesh_facts import ConfigFacts, MeshFacts, VersionFacts
    from nereid.observability.metrics_page import Family

_BATCHES: Final = f"{metrics.BATCH_SIZE.name}_count"
_ROWS: Final = f"{metrics.BATCH_SIZE.name}_sum"


@dataclass(frozen=True)
class Snapshot:
    """One version in a window. Counts and sums are of the window, unless they say otherwise.

    Durations of requests and executions are sums in microseconds; shares are from 0 to 1.
    """

    model: str
    version: str
    seconds: float
    config: ConfigFacts | None = None
    # As in the index.
    state: str = "READY"
    reason: str = ""
    # False if the version has to be loaded before it can execute.
    in_memory: bool = True
    # True if it was loaded in the window; unloaded: if it was so at the end, but not before.
    loaded: bool = False
    unloaded: bool = False
    load_seconds: float = 0.0

    requests: float = 0.0
    failures: float = 0.0
    retries: float = 0.0
    # At the end of the window.
    pending: float = 0.0
    request_us: float = 0.0
    queue_us: float = 0.0
    compute_us: float = 0.0

    executions: float = 0.0
    rows: float = 0.0
    execution_us: float = 0.0
    # Since the load.
    executions_since_load: float = 0.0
    execution_us_since_load: float = 0.0
    first_execution_us: float = 0.0
    # Batches by the reason for closing them.
    closed: Mapping[str, float] = field(default_factory=dict)
    input_elements: float = 0.0
    padding_elements: float = 0.0

    # Executors and the version's instances, at the beginning and at the end of the window; `None`:
    # unknown.
    executors: tuple[float, float] | None = None
    instances: tuple[float, float] = (1.0, 1.0)

    cache_hits: float = 0.0
    cache_misses: float = 0.0
    # Sum of what lookups and insertions of misses took.
    cache_miss_us: float = 0.0
    # Responses of all models that made way for others.
    cache_evictions: float = 0.0

    # Decoding and encoding of requests and responses that were large texts.
    large_text_us: float = 0.0

    # The busiest scheduler's share.
    scheduler_busy: float = 0.0
    # Part of scheduler_busy for which it waited for a processor.
    scheduler_waiting: float = 0.0
    # The share of periods in which a CPU limit stopped an executor, the one that was stopped most.
    throttled: float = 0.0
    cpu_utilization: float = 0.0
    # Used memory by device: cpu, or a GPU's UUID.
    memory_used: Mapping[str, float] = field(default_factory=dict)
    on_demand_loads: float = 0.0
    on_demand_unloads: float = 0.0
    # Clients' connections, on average; 0: unknown.
    connections: float = 0.0

    @property
    def idle(self) -> bool:
        """True if nothing was asked of it in the window."""
        return not (self.requests or self.failures or self.retries or self.pending)

    @property
    def busy(self) -> float:
        """Share of the window for which the instances executed."""
        whole_us = self.seconds * 1e6 * max(*self.instances, 1.0)
        return min(1.0, self.execution_us / whole_us) if whole_us else 0.0

    @property
    def mean_rows(self) -> float:
        """Rows of an execution; 0 without executions."""
        return self.rows / self.executions if self.executions else 0.0

    @property
    def mean_request_us(self) -> float:
        """Mean time of a request, with the decoding of texts at the gateway; 0 without requests."""
        return (self.request_us + self.large_text_us) / self.requests if self.requests else 0.0

    @property
    def in_flight(self) -> float:
        """Mean number of the requests that the scheduler had."""
        return self.request_us / (self.seconds * 1e6) if self.seconds else 0.0

    @property
    def delay_us(self) -> int:
        """The max_queue_delay_microseconds of the configuration."""
        config = self.config
        return 0 if config is None else config.proto.dynamic_batching.max_queue_delay_microseconds

    def share(self, us: float) -> float:
        """Return a sum of microseconds as a share of the time of all requests; 0 if unknown."""
        whole_us = self.request_us + self.large_text_us
        # With counter_latencies=false, only the time at the gateway is known.
        return min(1.0, us / whole_us) if self.request_us else 0.0


def snapshot_of(facts: MeshFacts, version: VersionFacts, seconds: float) -> Snapshot:
    """Return the figures between facts.earlier and facts; `seconds` is the time between them."""
    return _Reading(facts, version, seconds).snapshot()


class _Reading:
    def __init__(self, facts: MeshFacts, version: VersionFacts, seconds: float) -> None:
        # Without an earlier look, nothing is known to have happened.
        self._earlier = facts if facts.earlier is None else facts.earlier
        self._facts = replace(facts, earlier=self._earlier)
        self._version = version
        self._seconds = seconds
        self._labels = {"model": facts.model, "version": version.number}
        before = self._earlier.gauge(metrics.LOAD_DURATION.name, **self._labels)
        now = facts.gauge(metrics.LOAD_DURATION.name, **self._labels)
        # Counters begin anew with each load, and no two loads take equally long.
        self._is_loaded = now is not None and now != before
        self._is_unloaded = now is None and before is not None

    def snapshot(self) -> Snapshot:
        facts, version = self._facts, self._version
        labels = self._labels
        scheduler_busy, scheduler_waiting = self._busiest_scheduler()
        return Snapshot(
            facts.model,
            version.number,
            self._seconds,
            version.config,
            state=version.state,
            reason=version.reason,
            in_memory=version.in_memory,
            loaded=self._is_loaded,
            unloaded=self._is_unloaded,
            load_seconds=self._now(metrics.LOAD_DURATION),
            requests=self._grown(metrics.SUCCESS),
            failures=self._grown(metrics.FAILURE),
            retries=self._grown(metrics.RETRIES),
            pending=self._now(metrics.PENDING),
            request_us=self._grown(metrics.DURATIONS["request"]),
            queue_us=self._grown(metrics.DURATIONS["queue"]),
            compute_us=sum(
                self._grown(family)
                for phase, family in metrics.DURATIONS.items()
                if phase.startswith("compute")
            ),
            executions=self._grown_by_name(_BATCHES),
            rows=self._grown_by_name(_ROWS),
            execution_us=1e6 * self._grown(metrics.EXECUTION_SECONDS),
            executions_since_load=facts.gauge(_BATCHES, **labels) or 0.0,
            execution_us_since_load=1e6 * self._now(metrics.EXECUTION_SECONDS),
            first_execution_us=1e6 * self._now(metrics.FIRST_EXECUTION),
            closed={
                reason: max(0.0, count)
                for reason, count in facts.counts(
                    metrics.BATCHES_CLOSED.name, "reason", **labels
                ).items()
            },
            input_elements=self._grown(metrics.INPUT_ELEMENTS),
            padding_elements=self._grown(metrics.PADDING_ELEMENTS),
            executors=(
                None
                if self._facts.gauge(metrics.EXECUTORS.name) is None
                else self._both(metrics.EXECUTORS, {})
            ),
            instances=self._both(metrics.INSTANCES, labels),
            cache_hits=self._grown(metrics.CACHE_HITS),
            cache_misses=self._grown(metrics.CACHE_MISSES),
            cache_miss_us=self._grown(metrics.CACHE_MISS_DURATION),
            cache_evictions=facts.count(metrics.CACHE_EVICTIONS.name),
            large_text_us=1e6
            * facts.count(metrics.GATEWAY_LARGE_TEXT_SECONDS.name, model=facts.model),
            scheduler_busy=scheduler_busy,
            scheduler_waiting=scheduler_waiting,
            throttled=self._throttled(),
            cpu_utilization=facts.gauge(metrics.CPU_UTILIZATION.name) or 0.0,
            memory_used=self._memory_used(),
            on_demand_loads=facts.count(metrics.ON_DEMAND_LOADS.name),
            on_demand_unloads=facts.count(metrics.ON_DEMAND_UNLOADS.name),
            connections=sum(
                sum(self._both(family, {})) / 2
                for family in (metrics.GATEWAY_CONNECTIONS, metrics.GATEWAY_GRPC_CONNECTIONS)
            ),
        )

    def _now(self, family: Family) -> float:
        return self._facts.gauge(family.name, **self._labels) or 0.0

    def _both(self, family: Family, labels: Mapping[str, str]) -> tuple[float, float]:
        before = self._earlier.gauge(family.name, **labels)
        return before or 0.0, self._facts.gauge(family.name, **labels) or 0.0

    def _grown(self, family: Family) -> float:
        return self._grown_by_name(family.name)

    def _grown_by_name(self, name: str) -> float:
        if self._is_loaded:
            return self._facts.gauge(name, **self._labels) or 0.0
        return max(0.0, self._facts.count(name, **self._labels))

    def _busiest_scheduler(self) -> tuple[float, float]:
        """Return the largest busy share of an event loop, and its share of waiting."""
        before = self._earlier.metrics
        name = metrics.SCHEDULER_BUSY.name
        known = {} if before is None else before.by_label(name, "process")
        # Processes that began in the window are too young to be judged.
        grown = {
            process: seconds
            for process, seconds in self._facts.counts(name, "process").items()
            if process in known
        }
        if not grown or not self._seconds:
            return 0.0, 0.0
        process = max(grown, key=lambda each: grown[each])
        waiting = self._facts.count(name, process=process, state="waiting")
        return min(1.0, grown[process] / self._seconds), min(1.0, waiting / self._seconds)

    def _throttled(self) -> float:
        periods = self._facts.counts(metrics.CPU_PERIODS.name, "executor")
        throttled = self._facts.counts(metrics.THROTTLED_PERIODS.name, "executor")
        shares = [
            throttled.get(executor, 0.0) / count for executor, count in periods.items() if count > 0
        ]
        return min(1.0, max(shares, default=0.0))

    def _memory_used(self) -> dict[str, float]:
        samples = self._facts.metrics
        if samples is None:
            return {}
        total = samples.total(metrics.CPU_MEMORY_TOTAL.name)
        used = {}
        if total:
            used["cpu"] = (samples.total(metrics.CPU_MEMORY_USED.name) or 0.0) / total
        gpus = samples.by_label(metrics.GPU_MEMORY_TOTAL.name, "gpu_uuid")
        of_gpus = samples.by_label(metrics.GPU_MEMORY_USED.name, "gpu_uuid")
        used |= {uuid: of_gpus.get(uuid, 0.0) / size for uuid, size in gpus.items() if size}
        return used
