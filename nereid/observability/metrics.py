"""All metrics by name, and the page that they are shown on: Prometheus' text format, version 0.0.4.

Written at scrape time from counters that the services keep anyway; nothing here is on the way of a
request. Triton's names lack the _total that Prometheus' own library insists on, hence this writer.
Names that begin with nv_ are Triton's and mean what they mean there. Knows no service.
"""

from __future__ import annotations

import os
import resource
import time
from bisect import bisect_left
from collections import deque
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from nereid.pb import nereid_pb2 as pb

CONTENT_TYPE: Final = "text/plain; charset=utf-8"
_ESCAPES: Final = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


class Family(NamedTuple):
    """One metric: its name, type and meaning, and the labels that tell its series apart."""

    name: str
    kind: str
    help: str
    labels: tuple[str, ...] = ()


class Page:
    """Series by family, in the order in which families first came."""

    def __init__(self) -> None:
        self._lines: dict[Family, list[str]] = {}

    def add(self, family: Family, value: float, labels: Mapping[str, str] | None = None) -> None:
        """One series' value."""
        self._write(family, family.name, value, _text_of(labels or {}))

    def histogram(
        self, family: Family, labels: Mapping[str, str], observed: Histogram, total: float
    ) -> None:
        """A histogram; total is the sum of all that was observed."""
        so_far = 0
        for bound, count in zip((*observed.bounds, float("inf")), observed.counts, strict=True):
            so_far += count
            text = _text_of({**labels, "le": _number(bound)})
            self._write(family, family.name + "_bucket", so_far, text)
        self._write(family, family.name + "_sum", total, _text_of(labels))
        self._write(family, family.name + "_count", so_far, _text_of(labels))

    def summary(
        self, family: Family, labels: Mapping[str, str], observed: Summary, quantiles: Quantiles
    ) -> None:
        """A summary; the quantiles are those of the values seen lately."""
        for quantile, value in zip(quantiles, observed.at(quantiles), strict=True):
            text = _text_of({**labels, "quantile": _number(quantile)})
            self._write(family, family.name, value, text)
        self._write(family, family.name + "_sum", observed.total, _text_of(labels))
        self._write(family, family.name + "_count", observed.count, _text_of(labels))

    def encode(self) -> bytes:
        """The page as it is served."""
        lines = []
        for family, series in self._lines.items():
            lines.append(f"# HELP {family.name} {family.help}\n# TYPE {family.name} {family.kind}")
            lines += series
        return "".join(line + "\n" for line in lines).encode()

    def _write(self, family: Family, name: str, value: float, labels: str) -> None:
        line = f"{name}{{{labels}}} {_number(value)}" if labels else f"{name} {_number(value)}"
        self._lines.setdefault(family, []).append(line)


Quantiles = tuple[float, ...]


class Histogram:
    """How many values fell between which bounds; a value on a bound belongs below it."""

    __slots__ = ("bounds", "counts")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        # One more: what is above all bounds.
        self.counts = [0] * (len(self.bounds) + 1)

    def observe(self, value: float, times: int = 1) -> None:
        self.counts[bisect_left(self.bounds, value)] += times


class Summary:
    """The latest values, for their quantiles, and the sum and count of all."""

    __slots__ = ("_latest", "count", "total")

    # Enough for a 0.999 quantile to mean something.
    _WINDOW = 4096

    def __init__(self) -> None:
        self.count = 0
        self.total = 0.0
        self._latest: deque[float] = deque(maxlen=self._WINDOW)

    def observe(self, value: float, times: int = 1) -> None:
        self.count += times
        self.total += value * times
        self._latest.extend(repeat(value, min(times, self._WINDOW)))

    def observe_all(self, values: Collection[float]) -> None:
        self.count += len(values)
        self.total += sum(values)
        self._latest.extend(values)

    def at(self, quantiles: Quantiles) -> list[float]:
        """The values at these quantiles; NaN, as Prometheus has it, where nothing was seen."""
        ordered = sorted(self._latest)
        if not ordered:
            return [float("nan")] * len(quantiles)
        last = len(ordered) - 1
        return [ordered[round(quantile * last)] for quantile in quantiles]


def _text_of(labels: Mapping[str, str]) -> str:
    return ",".join(f'{name}="{value.translate(_ESCAPES)}"' for name, value in labels.items())


def _number(value: float) -> str:
    if value == float("inf"):
        return "+Inf"
    if value != value:  # noqa: PLR0124 - only NaN differs from itself
        return "NaN"
    return str(int(value)) if value == int(value) else repr(value)


# ---- Triton's, of models

_MODEL: Final = ("model", "version")
# The last one only of what instances on a GPU did.
_DEVICE: Final = (*_MODEL, "gpu_uuid")


def _counter(name: str, text: str, *labels: str) -> Family:
    return Family(name, "counter", text, labels)


def _gauge(name: str, text: str, *labels: str) -> Family:
    return Family(name, "gauge", text, labels)


SUCCESS: Final = _counter(
    "nv_inference_request_success",
    "Number of successful inference requests, all batch sizes",
    *_DEVICE,
)
FAILURE: Final = _counter(
    "nv_inference_request_failure",
    "Number of failed inference requests, all batch sizes",
    *_MODEL,
    "reason",
)
# Why a request failed: refused by its queue, given up by its client, by its model, or else.
REJECTED, CANCELED, BACKEND, OTHER = FAILURE_REASONS = ("REJECTED", "CANCELED", "BACKEND", "OTHER")
INFERENCES: Final = _counter(
    "nv_inference_count",
    "Number of inferences performed (does not include cached requests)",
    *_DEVICE,
)
EXECUTIONS: Final = _counter(
    "nv_inference_exec_count",
    "Number of model executions performed (does not include cached requests)",
    *_DEVICE,
)
PENDING: Final = _gauge(
    "nv_inference_pending_request_count",
    "Instantaneous number of pending requests awaiting execution per-model.",
    *_MODEL,
)
LOAD_DURATION: Final = _gauge("nv_model_load_duration_secs", "Model load time in seconds", *_MODEL)
_MICROS: Final = "duration in microseconds"
_PHASES: Final = {
    "request": f"inference request {_MICROS} (includes cached requests)",
    "queue": f"inference queuing {_MICROS} (includes cached requests)",
    "compute_input": f"compute input {_MICROS} (does not include cached requests)",
    "compute_infer": f"compute inference {_MICROS} (does not include cached requests)",
    "compute_output": f"inference compute output {_MICROS} (does not include cached requests)",
}
DURATIONS: Final = {
    phase: _counter(
        f"nv_inference_{phase}_duration_us",
        f"Cumulative {what}",
        *_DEVICE,
    )
    for phase, what in _PHASES.items()
}
SUMMARIES: Final = {
    phase: Family(
        f"nv_inference_{phase}_summary_us",
        "summary",
        f"Summary of {what}",
        _MODEL,
    )
    for phase, what in _PHASES.items()
}
FIRST_RESPONSE: Final = Family(
    "nv_inference_first_response_histogram_ms",
    "histogram",
    "Duration from request to first response in milliseconds",
    _MODEL,
)
CACHE_HITS: Final = _counter(
    "nv_cache_num_hits_per_model", "Number of cache hits per model", *_MODEL
)
CACHE_MISSES: Final = _counter(
    "nv_cache_num_misses_per_model", "Number of cache misses per model", *_MODEL
)
CACHE_HIT_DURATION: Final = _counter(
    "nv_cache_hit_duration_per_model",
    "Total cache hit duration per model, in microseconds",
    *_MODEL,
)
CACHE_MISS_DURATION: Final = _counter(
    "nv_cache_miss_duration_per_model",
    "Total cache miss (lookup and insertion) duration per model, in microseconds",
    *_MODEL,
)
CACHE_HIT_SUMMARY: Final = Family(
    "nv_cache_hit_summary_per_model",
    "summary",
    "Summary of cache hit duration per model, in microseconds",
    _MODEL,
)
CACHE_MISS_SUMMARY: Final = Family(
    "nv_cache_miss_summary_per_model",
    "summary",
    "Summary of cache miss duration per model, in microseconds",
    _MODEL,
)

# ---- Triton's, of machines and of the cache

PINNED_TOTAL: Final = _gauge(
    "nv_pinned_memory_pool_total_bytes", "Size of the pool of pinned memory, in bytes"
)
PINNED_USED: Final = _gauge(
    "nv_pinned_memory_pool_used_bytes", "Use of the pool of pinned memory, in bytes"
)
CPU_UTILIZATION: Final = _gauge("nv_cpu_utilization", "CPU utilization rate [0.0 - 1.0]")
CPU_MEMORY_TOTAL: Final = _gauge("nv_cpu_memory_total_bytes", "CPU total memory (RAM), in bytes")
CPU_MEMORY_USED: Final = _gauge("nv_cpu_memory_used_bytes", "CPU used memory (RAM), in bytes")
GPU_UTILIZATION: Final = _gauge(
    "nv_gpu_utilization", "GPU utilization rate [0.0 - 1.0)", "gpu_uuid"
)
GPU_MEMORY_TOTAL: Final = _gauge(
    "nv_gpu_memory_total_bytes", "GPU total memory, in bytes", "gpu_uuid"
)
GPU_MEMORY_USED: Final = _gauge("nv_gpu_memory_used_bytes", "GPU used memory, in bytes", "gpu_uuid")
GPU_POWER_USAGE: Final = _gauge("nv_gpu_power_usage", "GPU power usage in watts", "gpu_uuid")
GPU_POWER_LIMIT: Final = _gauge(
    "nv_gpu_power_limit", "GPU power management limit in watts", "gpu_uuid"
)
ENERGY: Final = _counter(
    "nv_energy_consumption",
    "GPU energy consumption in joules since its driver was loaded",
    "gpu_uuid",
)
CACHE_ENTRIES: Final = _gauge("nv_cache_num_entries", "Number of responses stored in the cache")
CACHE_LOOKUPS: Final = _gauge("nv_cache_num_lookups", "Number of lookups in the cache")
CACHE_ALL_HITS: Final = _gauge("nv_cache_num_hits", "Number of lookups that found a response")
CACHE_ALL_MISSES: Final = _gauge("nv_cache_num_misses", "Number of lookups that found none")
CACHE_EVICTIONS: Final = _gauge("nv_cache_num_evictions", "Number of responses evicted")
CACHE_LOOKUP_DURATION: Final = _gauge(
    "nv_cache_lookup_duration", "Total duration of lookups, in microseconds"
)
CACHE_INSERTION_DURATION: Final = _gauge(
    "nv_cache_insertion_duration", "Total duration of insertions, in microseconds"
)
CACHE_UTIL: Final = _gauge("nv_cache_util", "Share of the cache's memory in use [0.0 - 1.0]")

# ---- Nereid's: the scheduler

BATCH_SIZE: Final = Family(
    "nereid_batch_size", "histogram", "Sizes of the batches that were executed", _MODEL
)
BATCH_SIZE_BOUNDS: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256)
BATCHES_CLOSED: Final = _counter(
    "nereid_batches_closed_total",
    "Batches given to an instance, by why they were closed",
    *_MODEL,
    "reason",
)
CLOSING_REASONS: Final = ("full", "preferred", "shape", "delay", "immediate", "single")
RETRIES: Final = _counter(
    "nereid_retries_total",
    "Requests run again because the instance that had them was lost",
    *_MODEL,
)
EXECUTORS: Final = _gauge("nereid_executors", "Executors that have joined")
INSTANCES: Final = _gauge(
    "nereid_instances", "Model instances that are ready, by what they do", *_MODEL, "state"
)
LINKS: Final = _gauge("nereid_links", "Open streams to the scheduler, by who dialled", "peer")
LINK_PENDING: Final = _gauge(
    "nereid_link_pending_requests", "Requests of one gateway's link that are unanswered", "link"
)
HELD: Final = _gauge("nereid_held_requests", "Requests that wait for their model's first load")
CACHE_STORES: Final = _counter("nereid_cache_stores_total", "Responses stored in the cache")
CACHE_FAILURES: Final = _counter(
    "nereid_cache_failures_total", "Lookups and stores that the cache's store failed"
)
CACHE_USED: Final = _gauge("nereid_cache_used_bytes", "Memory that the cache's responses take")
CACHE_CAPACITY: Final = _gauge("nereid_cache_capacity_bytes", "Memory that the cache may take")

# ---- Nereid's: gateway and executor

HTTP_RESPONSES: Final = _counter(
    "nereid_gateway_http_responses_total", "Answers to HTTP requests, by status", "status"
)
GRPC_RESPONSES: Final = _counter(
    "nereid_gateway_grpc_responses_total", "Answers to gRPC calls, by status", "status"
)
GATEWAY_PENDING: Final = _gauge(
    "nereid_gateway_pending_requests", "Inference requests of this gateway that are unanswered"
)
GATEWAY_CONNECTIONS: Final = _gauge(
    "nereid_gateway_http_connections", "Open connections of HTTP clients"
)
GATEWAY_LINKED: Final = _gauge(
    "nereid_gateway_linked", "1 while this gateway's link to the scheduler is up, else 0"
)
EXECUTOR_LINKED: Final = _gauge(
    "nereid_executor_joined", "1 while this executor is joined to the scheduler, else 0"
)
EXECUTOR_INSTANCES: Final = _gauge(
    "nereid_executor_instances", "Instances of this executor", *_MODEL
)
EXECUTOR_BATCHES: Final = _counter(
    "nereid_executor_batches_total", "Batches that this executor has executed", *_MODEL
)

# ---- a process, by Prometheus' own names

_CPU_SECONDS: Final = _counter(
    "process_cpu_seconds_total", "Total user and system CPU time spent in seconds."
)
_RESIDENT: Final = _gauge("process_resident_memory_bytes", "Resident memory size in bytes.")
_OPEN_FILES: Final = _gauge("process_open_fds", "Number of open file descriptors.")
_STARTED: Final = _gauge(
    "process_start_time_seconds", "Start time of the process since unix epoch in seconds."
)
_started_at: Final = time.time()


def write_process(page: Page) -> None:
    """What this process takes of its machine."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    page.add(_CPU_SECONDS, used.ru_utime + used.ru_stime)
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        page.add(_RESIDENT, pages * os.sysconf("SC_PAGE_SIZE"))
        page.add(_OPEN_FILES, len(os.listdir("/proc/self/fd")))  # noqa: PTH208 - names suffice
    except OSError:
        # No /proc on this system: the rest is worth telling all the same.
        pass
    page.add(_STARTED, _started_at)


def write_cache(page: Page, usage: pb.CacheUsage) -> None:
    """What a cache service told of itself."""
    page.add(CACHE_ENTRIES, usage.entries)
    page.add(CACHE_LOOKUPS, usage.lookups)
    page.add(CACHE_ALL_HITS, usage.hits)
    page.add(CACHE_ALL_MISSES, usage.lookups - usage.hits)
    page.add(CACHE_EVICTIONS, usage.evictions)
    page.add(CACHE_LOOKUP_DURATION, usage.lookup_ns // 1000)
    page.add(CACHE_INSERTION_DURATION, usage.store_ns // 1000)
    # A store that has no bound of its own is never full.
    page.add(CACHE_UTIL, usage.used_bytes / usage.capacity_bytes if usage.capacity_bytes else 0)
    page.add(CACHE_STORES, usage.stores)
    page.add(CACHE_FAILURES, usage.failures)
    page.add(CACHE_USED, usage.used_bytes)
    page.add(CACHE_CAPACITY, usage.capacity_bytes)
