"""Writes the scheduler's part of the metrics page: models, hosts, GPUs, cache, batches, streams."""

from __future__ import annotations

import os
import re
import socket
import time
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Final

from nereid.observability import metrics
from nereid.observability.metrics_page import Histogram
from nereid_scheduler.core.measurements.latency_histograms import BOUNDS_US
from nereid_scheduler.pages.custom_metrics import write_custom
from nereid_scheduler.pages.waiting_requests import waiting_by_device
from nereid_scheduler.placement.executors.sessions import memory_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from nereid.observability.metrics_page import Family, Page
    from nereid.pb import nereid_pb2 as pb
    from nereid_scheduler.admission.gateway_session import GatewaySession
    from nereid_scheduler.batching.policies.latency_target import LatencyTarget
    from nereid_scheduler.control.repository.repositories import Repositories
    from nereid_scheduler.control.residency.on_demand import OnDemandCounts
    from nereid_scheduler.control.rollouts.rollouts import Rollouts
    from nereid_scheduler.core.measurements.latencies import Latencies, MetricsConfig
    from nereid_scheduler.core.measurements.statistics import GpuShare, ModelStatistics
    from nereid_scheduler.core.requests.load_queue import LoadQueue
    from nereid_scheduler.placement.executors.sessions import Session
    from nereid_scheduler.placement.loads.loader import Loader
    from nereid_scheduler.placement.models.catalogue import Catalogue, ServedVersion
    from nereid_scheduler.versions.model_version import ModelVersion

    Labels = Mapping[str, str]

_SCHEDULE: Final = Path("/proc/thread-self/schedstat")
_DURATIONS: Final = tuple(metrics.DURATIONS.values())


class SchedulerMetrics:
    """Writes the scheduler's part of the metrics page."""

    def __init__(  # noqa: PLR0913 - one source of metrics each
        self,
        catalogue: Catalogue,
        loader: Loader,
        held_requests: LoadQueue,
        gateways: Collection[GatewaySession],
        config: MetricsConfig,
        *,
        repositories: Repositories,
        cache_usage: Callable[[], pb.CacheUsage | None] = lambda: None,
        state_failures: Callable[[], int | None] = lambda: None,
        on_demand: OnDemandCounts | None = None,
        rollouts: Rollouts | None = None,
    ) -> None:
        self._on_demand = on_demand
        self._rollouts = rollouts
        self._state_failures = state_failures
        self._catalogue = catalogue
        self._loader = loader
        self._held_requests = held_requests
        self._gateways = gateways
        self._config = config
        self._repositories = repositories
        self.cache_usage = cache_usage
        # Unlike a scheduler's name, a restarted process has another, so that its time begins at 0.
        self._process = f"{socket.gethostname()}/{os.getpid()}"

    def write(self, page: Page) -> None:
        """Write all metrics."""
        self.write_mesh(page, cpu=True, gpu=True)

    def write_mesh(
        self,
        page: Page,
        *,
        cpu: bool,
        gpu: bool,
        models: Collection[str] = (),
        histograms: bool = True,
    ) -> None:
        """Write the metrics. `models`: plain names; if empty, all models."""
        self._write_models(page, models, histograms)
        usage = self.cache_usage()
        if usage is not None:
            metrics.write_cache(page, usage)
        self.write_own_counts(page)
        for path in self._repositories.paths:
            is_stale = path in self._repositories.problems
            page.add_value(metrics.REPOSITORY_STALE, int(is_stale), {"repository": path})
        self._write_unavailable(page, models)
        self._write_traffic(page, models)
        self._write_rollouts(page, models)
        # Executors have no pinned memory pool, but Triton's dashboards query these metrics.
        page.add_value(metrics.PINNED_TOTAL, 0)
        page.add_value(metrics.PINNED_USED, 0)
        if cpu:
            write_cpus(page, self._loader.sessions)
        if gpu:
            write_gpus(page, self._loader.sessions)
        self._write_streams(page)
        write_executors(page, self._loader.sessions)
        for state, loop_ns in loop_times_ns().items():
            labels = {"process": self._process, "state": state}
            page.add_value(metrics.SCHEDULER_BUSY, loop_ns / 1e9, labels)
        sessions = self._loader.sessions
        names = {served.plain_name for served in self._catalogue.versions()}
        reports = [self._loader.ended_executors.read(names, sessions)]
        reports += [
            session.custom_metrics for session in sessions if session.custom_metrics is not None
        ]
        write_custom(page, reports)

    def write_own_counts(self, page: Page) -> int:
        """Write the counts that belong to no model; return their sum, which only grows."""
        total = 0
        counts = self._on_demand
        if counts is not None:
            page.add_value(metrics.ON_DEMAND_LOADS, counts.loads)
            page.add_value(metrics.ON_DEMAND_UNLOADS, counts.unloads)
            total = counts.loads + counts.unloads
        state_failures = self._state_failures()
        if state_failures is not None:
            page.add_value(metrics.STATE_FAILURES, state_failures)
            total += state_failures
        return total

    def _write_models(self, page: Page, models: Collection[str], histograms: bool) -> None:
        for served in self._catalogue.versions():
            if models and served.plain_name not in models:
                continue
            if served.runtime is not None and served.load_duration_s is not None:
                labels = self.write_version(page, served, served.runtime)
                if histograms:
                    _write_histograms(page, labels, served.runtime.statistics)
                page.add_value(metrics.LOAD_DURATION, served.load_duration_s, labels)
                for device, size in sorted(memory_of(served, self._loader.sessions).items()):
                    page.add_value(metrics.MODEL_MEMORY, size, {**labels, "device": device})

    def _write_unavailable(self, page: Page, models: Collection[str]) -> None:
        for model in self._catalogue.models():
            if models and model.plain_name not in models:
                continue
            failed = {str(served.number): served.life.failed for served in model.versions.values()}
            if model.reason and not model.versions:
                failed[""] = True
            own = {"namespace": model.namespace} if model.namespace else {}
            for version, has_failed in failed.items():
                labels = {"model": model.plain_name, "version": version, **own}
                page.add_value(metrics.MODEL_UNAVAILABLE, int(has_failed), labels)

    def _write_traffic(self, page: Page, models: Collection[str]) -> None:
        for model, traffic in self._catalogue.models_with_traffic():
            if models and model.plain_name not in models:
                continue
            own = {"namespace": model.namespace} if model.namespace else {}
            weights = dict.fromkeys(model.versions, 0) | dict(traffic.weights)
            for version, weight in sorted(weights.items()):
                labels = {"model": model.plain_name, "version": str(version), **own}
                page.add_value(metrics.TRAFFIC_WEIGHT, weight, labels)

    def _write_rollouts(self, page: Page, models: Collection[str]) -> None:
        if self._rollouts is None:
            return
        for name, rollout in self._rollouts.not_over():
            if not models or name in models:
                labels = {"model": name, "version": str(rollout.to)}
                page.add_value(metrics.ROLLOUT_PERCENT, rollout.percent, labels)
        for (name, outcome), count in sorted(self._rollouts.ended.items()):
            if not models or name in models:
                page.add_value(metrics.ROLLOUTS, count, {"model": name, "outcome": outcome})

    def write_version(self, page: Page, served: ServedVersion, model: ModelVersion) -> Labels:
        """Write a version's counters and current values; return its labels."""
        labels = model_labels(model, served.namespace)
        statistics = model.statistics
        self._write_counts(page, labels, statistics)
        for reason, count in statistics.failures.items():
            # Labels are in the order of Triton's page, which some clients match as text.
            page.add_value(
                metrics.FAILURE, count, dict(sorted({**labels, "reason": reason}.items()))
            )
        page.add_value(metrics.PENDING, model.dispatcher.pending, labels)
        if self._config.counter_latencies:
            by_size = statistics.compute_by_batch_size.values()
            busy_ns = sum(each.input_ns + each.infer_ns + each.output_ns for each in by_size)
            page.add_value(metrics.EXECUTION_SECONDS, busy_ns / 1e9, labels)
        cached = model.config.response_cache
        if cached:
            _write_cached(page, labels, statistics)
        self._write_latencies(page, labels, model.requests.records.latencies, cached=cached)
        _write_batches(page, labels, model)
        return labels

    def _write_counts(self, page: Page, labels: Labels, statistics: ModelStatistics) -> None:
        """Write each GPU's counts, and the counts that belong to no GPU unless all are zero."""
        rest = _counts_of(statistics)
        shares = []
        for uuid, share in statistics.gpus.items():
            counts = _counts_of_share(share)
            rest = {family: value - counts[family] for family, value in rest.items()}
            shares.append(({"gpu_uuid": uuid, **labels}, counts))
        if not shares or any(rest.values()):
            shares.append(({**labels}, rest))
        for share_labels, counts in shares:
            for family, value in counts.items():
                if family not in _DURATIONS:
                    page.add_value(family, value, share_labels)
                elif self._config.counter_latencies:
                    page.add_value(family, value // 1000, share_labels)

    def _write_latencies(
        self, page: Page, labels: Labels, latencies: Latencies | None, *, cached: bool
    ) -> None:
        quantiles = self._config.summary_quantiles
        if latencies is None:
            return
        if latencies.first_response is not None:
            sum_ms = latencies.first_response_ms
            page.add_histogram(metrics.FIRST_RESPONSE, labels, latencies.first_response, sum_ms)
        if latencies.phases is None:
            return
        for phase, summary in latencies.phases.items():
            # As in Triton, omit "request": it would mix cache hits with executed requests.
            if not (cached and phase == "request"):
                page.add_summary(metrics.SUMMARIES[phase], labels, summary, quantiles)
        if cached:
            page.add_summary(metrics.CACHE_HIT_SUMMARY, labels, latencies.cache_hit, quantiles)
            page.add_summary(metrics.CACHE_MISS_SUMMARY, labels, latencies.cache_miss, quantiles)

    def _write_streams(self, page: Page) -> None:
        sessions = self._loader.sessions
        page.add_value(metrics.EXECUTORS, len(sessions))
        gateways = sum(not session.for_models for session in self._gateways)
        page.add_value(metrics.LINKS, gateways, {"peer": "gateway"})
        page.add_value(metrics.LINKS, len(sessions), {"peer": "executor"})
        page.add_value(metrics.LINKS, self._loader.instances.open, {"peer": "instance"})
        for session in self._gateways:
            page.add_value(metrics.LINK_PENDING, session.pending, {"link": str(session.number)})
        waiting = waiting_by_device(self._catalogue, self._held_requests)
        for device in metrics.DEVICES:
            page.add_value(metrics.WAITING, waiting[device], {"device": device})
        page.add_value(metrics.HELD, len(self._held_requests))


def model_labels(model: ModelVersion, namespace: str = "") -> dict[str, str]:
    """Return the labels of all series of a version: Triton's labels and the model's metric_tags."""
    tags = {
        "_" + re.sub(r"[^a-zA-Z0-9_]", "_", tag): value
        for tag, value in sorted(model.config.proto.metric_tags.items())
    }
    own = {"namespace": namespace} if namespace else {}
    return {**tags, "model": model.name, "version": str(model.number), **own}


def write_cpus(page: Page, sessions: Iterable[Session]) -> None:
    """Write the mesh's processors and memory. A host counts once, however many executors it has."""
    hosts: dict[str, pb.DeviceUsage] = {}
    for session in sessions:
        if session.usage is not None:
            # The part before the slash is the boot id, which all containers of a host share.
            boot = session.hello.host.partition("/")[0]
            hosts[boot or session.name] = session.usage
    if hosts:
        usages = hosts.values()
        mean = sum(usage.cpu_utilization for usage in usages) / len(usages)
        page.add_value(metrics.CPU_UTILIZATION, mean)
        page.add_value(metrics.CPU_MEMORY_TOTAL, sum(usage.memory_total_bytes for usage in usages))
        page.add_value(metrics.CPU_MEMORY_USED, sum(usage.memory_used_bytes for usage in usages))


def write_executors(page: Page, sessions: Iterable[Session]) -> None:
    """Write how often limits of processors stopped executors, for those that have a limit."""
    for session in sessions:
        usage = session.usage
        if usage is not None and usage.cpu_periods:
            labels = {"executor": session.name}
            page.add_value(metrics.CPU_PERIODS, usage.cpu_periods, labels)
            page.add_value(metrics.THROTTLED_PERIODS, usage.throttled_cpu_periods, labels)


def loop_times_ns() -> dict[str, int]:
    """Return how long this thread has run, and waited for a processor, in nanoseconds."""
    try:
        running, waiting, _ = _SCHEDULE.read_text().split()
    except (OSError, ValueError):
        return {"running": time.thread_time_ns()}
    return {"running": int(running), "waiting": int(waiting)}


def write_gpus(page: Page, sessions: Iterable[Session]) -> None:
    """Write each GPU once, however many executors can use the GPU."""
    gpus: dict[str, pb.GpuUsage] = {}
    for session in sessions:
        if session.usage is not None:
            gpus.update((gpu.uuid, gpu) for gpu in session.usage.gpus)
    for uuid, gpu in gpus.items():
        labels = {"gpu_uuid": uuid}
        page.add_value(metrics.GPU_UTILIZATION, gpu.utilization, labels)
        page.add_value(metrics.GPU_MEMORY_TOTAL, gpu.memory_total_bytes, labels)
        page.add_value(metrics.GPU_MEMORY_USED, gpu.memory_used_bytes, labels)
        page.add_value(metrics.GPU_POWER_USAGE, gpu.power_usage_watts, labels)
        page.add_value(metrics.GPU_POWER_LIMIT, gpu.power_limit_watts, labels)
        page.add_value(metrics.ENERGY, gpu.energy_joules, labels)


def _counts_of(statistics: ModelStatistics) -> dict[Family, int]:
    """Return a version's counters by metric. Durations are in nanoseconds."""
    compute = statistics.compute
    return _counts(
        (statistics.success.count, statistics.inference_count, statistics.execution_count),
        (statistics.success.ns, statistics.queue_ns),
        (compute.input_ns, compute.infer_ns, compute.output_ns),
    )


def _counts_of_share(share: GpuShare) -> dict[Family, int]:
    return _counts(
        (share.success, share.inference_count, share.execution_count),
        (share.request_ns, share.queue_ns),
        (share.compute_input_ns, share.compute_infer_ns, share.compute_output_ns),
    )


def _counts(*values: tuple[int, ...]) -> dict[Family, int]:
    families = (metrics.SUCCESS, metrics.INFERENCES, metrics.EXECUTIONS, *_DURATIONS)
    return dict(zip(families, chain(*values), strict=True))


def _write_cached(page: Page, labels: Labels, statistics: ModelStatistics) -> None:
    page.add_value(metrics.CACHE_HITS, statistics.cache_hit.count, labels)
    page.add_value(metrics.CACHE_MISSES, statistics.cache_miss.count, labels)
    page.add_value(metrics.CACHE_HIT_DURATION, statistics.cache_hit.ns // 1000, labels)
    page.add_value(metrics.CACHE_MISS_DURATION, statistics.cache_miss.ns // 1000, labels)


def _write_histograms(page: Page, labels: Labels, statistics: ModelStatistics) -> None:
    """Write the latencies of a version that has had requests."""
    if not statistics.success.count:
        return
    compute, histograms = statistics.compute, statistics.histograms
    phases = {
        "request": (histograms.request, statistics.success.ns),
        "queue": (histograms.queue, statistics.queue_ns),
        "compute_input": (histograms.compute_input, compute.input_ns),
        "compute_infer": (histograms.compute_infer, compute.infer_ns),
        "compute_output": (histograms.compute_output, compute.output_ns),
    }
    for phase, (counts, total_ns) in phases.items():
        observed = Histogram(BOUNDS_US, counts)
        page.add_histogram(metrics.HISTOGRAMS[phase], labels, observed, total_ns // 1000)


def _write_batches(page: Page, labels: Labels, model: ModelVersion) -> None:
    statistics = model.statistics
    sizes = Histogram(metrics.BATCH_SIZE_BOUNDS)
    total = 0
    for size, compute in statistics.compute_by_batch_size.items():
        sizes.observe(size, compute.count)
        total += size * compute.count
    page.add_histogram(metrics.BATCH_SIZE, labels, sizes, total)
    if statistics.first_execution_ns:
        page.add_value(metrics.FIRST_EXECUTION, statistics.first_execution_ns / 1e9, labels)
    if statistics.input_elements:
        page.add_value(metrics.INPUT_ELEMENTS, statistics.input_elements, labels)
        page.add_value(metrics.PADDING_ELEMENTS, statistics.padding_elements, labels)
    for reason, count in statistics.batches_closed.items():
        page.add_value(metrics.BATCHES_CLOSED, count, {**labels, "reason": reason})
    page.add_value(metrics.REFUSED, statistics.refused, labels)
    page.add_value(metrics.ERROR_RESPONSES, statistics.error_responses, labels)
    page.add_value(metrics.RETRIES, statistics.retries, labels)
    if model.dispatcher.target is not None:
        _write_target(page, labels, model.dispatcher.target)
    ready, free = model.dispatcher.instances
    page.add_value(metrics.INSTANCES, free, {**labels, "state": "free"})
    page.add_value(metrics.INSTANCES, ready - free, {**labels, "state": "busy"})
    if model.dispatcher.sequences is not None:
        live, backlog = model.dispatcher.sequences
        page.add_value(metrics.SEQUENCES, live, {**labels, "state": "live"})
        page.add_value(metrics.SEQUENCES, backlog, {**labels, "state": "backlog"})


def _write_target(page: Page, labels: Labels, target: LatencyTarget) -> None:
    page.add_value(metrics.TARGET, target.target_ns // 1000, labels)
    page.add_value(metrics.TARGET_REACHABLE, int(target.reachable), labels)
    page.add_value(metrics.TARGET_HELD, int(target.held_ns) // 1000, labels)
    page.add_value(metrics.TARGET_SIZE, target.plan.size, labels)
    page.add_value(metrics.TARGET_DELAY, target.plan.delay_ns // 1000, labels)
    page.add_value(metrics.TARGET_EXECUTION, target.plan.execution_ns // 1000, labels)
    page.add_value(metrics.TARGET_MISSED, target.missed, labels)
