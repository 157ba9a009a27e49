"""All metrics, declared by name, type, help and labels, and written at scrape time.

scripts/metric_reference.py makes docs/reference/metrics.md from this.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from nereid.observability.metrics_page import Family

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nereid.observability.metrics_page import Page
    from nereid.pb import nereid_pb2 as pb


_MODEL: Final = ("model", "version")
# Only series of instances on a GPU have the label gpu_uuid.
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
# Reasons: expired in the queue, cancelled by the client, failed by the model, any other.
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
# The names that Triton's pull request server #8675 proposes.
HISTOGRAMS: Final = {
    phase: Family(
        f"nv_inference_{phase}_duration_histogram_us",
        "histogram",
        f"Latencies by {phase.removeprefix('compute_')}, in microseconds",
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


BATCH_SIZE: Final = Family(
    "nereid_batch_size", "histogram", "Sizes of the batches that were executed", _MODEL
)
BATCH_SIZE_BOUNDS: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256)
EXECUTION_SECONDS: Final = _counter(
    "nereid_execution_seconds_total",
    "Time that instances took for executions: input, inference and output",
    *_MODEL,
)
STEPS_SKIPPED: Final = _counter(
    "nereid_ensemble_steps_skipped_total",
    "Requests of an ensemble, or parts of them, whose conditions skipped a step",
    *_MODEL,
    "step",
)
FIRST_EXECUTION: Final = _gauge(
    "nereid_first_execution_seconds",
    "Duration of the first execution since the load",
    *_MODEL,
)
INPUT_ELEMENTS: Final = _counter(
    "nereid_input_elements_total",
    "Elements in inputs of executed requests, with their padding; of models with padding",
    *_MODEL,
)
PADDING_ELEMENTS: Final = _counter(
    "nereid_padding_elements_total",
    "Elements of nereid_input_elements_total that are padding",
    *_MODEL,
)
BATCHES_CLOSED: Final = _counter(
    "nereid_batches_closed_total",
    "Batches given to an instance, by the reason for closing them",
    *_MODEL,
    "reason",
)
CLOSING_REASONS: Final = (
    "full",
    "preferred",
    "tokens",
    "length",
    "shape",
    "delay",
    "immediate",
    "shared",
    "cost",
    "single",
)
REFUSED: Final = _counter(
    "nereid_requests_refused_total",
    "Requests that a full queue refused, or a target; as on Triton, they are no failures",
    *_MODEL,
)
ERROR_RESPONSES: Final = _counter(
    "nereid_error_responses_total",
    "Requests to which the model itself responded with an error; as on Triton, no failures",
    *_MODEL,
)
RETRIES: Final = _counter(
    "nereid_retries_total",
    "Requests run again because the instance that had them was lost",
    *_MODEL,
)
TARGET: Final = _gauge(
    "nereid_target_p99_us",
    "The model's target_p99_us; these metrics are of models with one",
    *_MODEL,
)
TARGET_REACHABLE: Final = _gauge(
    "nereid_target_reachable",
    "Whether executing one request takes less than the target (1)",
    *_MODEL,
)
TARGET_HELD: Final = _gauge(
    "nereid_target_held_us",
    "The time that requests are admitted for: a little less than the target, or what can be held"
    " instead, in microseconds",
    *_MODEL,
)
TARGET_SIZE: Final = _gauge(
    "nereid_target_batch_size", "The largest batch, as decided for the target", *_MODEL
)
TARGET_DELAY: Final = _gauge(
    "nereid_target_delay_us",
    "How long a batch waits for more while an instance is free, as decided for the target, in"
    " microseconds",
    *_MODEL,
)
TARGET_EXECUTION: Final = _gauge(
    "nereid_target_execution_us",
    "What executing the largest batch is expected to take, or nearly always less, in microseconds;"
    " 0: not measured",
    *_MODEL,
)
TARGET_MISSED: Final = _counter(
    "nereid_target_missed_total", "Requests that were executed later than the target", *_MODEL
)
EXECUTORS: Final = _gauge("nereid_executors", "Executors that have joined")
CPU_PERIODS: Final = _counter(
    "nereid_executor_cpu_periods_total",
    "Periods in which a limit of processors held for an executor's control group",
    "executor",
)
THROTTLED_PERIODS: Final = _counter(
    "nereid_executor_throttled_cpu_periods_total",
    "Periods in which that limit stopped the control group",
    "executor",
)
INSTANCES: Final = _gauge(
    "nereid_instances", "Ready model instances, by whether they execute a batch", *_MODEL, "state"
)
TRAFFIC_WEIGHT: Final = _gauge(
    "nereid_model_traffic_weight",
    "Weight of the version among requests that name none",
    *_MODEL,
)
ROLLOUT_PERCENT: Final = _gauge(
    "nereid_model_rollout_percent",
    "Percent of the requests that a rollout gives the version",
    *_MODEL,
)
ROLLOUTS: Final = _counter(
    "nereid_model_rollouts_total",
    "Rollouts that have ended: done, back or aborted",
    "model",
    "outcome",
)
MODEL_MEMORY: Final = _gauge(
    "nereid_model_memory_bytes",
    "Memory that the model's instances took at their loads, on all executors, in bytes",
    *_MODEL,
    "device",
)
ON_DEMAND_LOADS: Final = _counter(
    "nereid_on_demand_loads_total", "Models loaded because a request needed them (--lazy-loading)"
)
ON_DEMAND_UNLOADS: Final = _counter(
    "nereid_on_demand_unloads_total", "Models unloaded to make way for others"
)
SEQUENCES: Final = _gauge(
    "nereid_sequences",
    "Sequences of a stateful model that have not ended: all (live), and those without a slot"
    " (backlog)",
    *_MODEL,
    "state",
)
SCHEDULER_BUSY: Final = _counter(
    "nereid_scheduler_busy_seconds_total",
    "Time for which the event loop of a scheduler ran (running), or could not run because no"
    " processor was free (waiting); with --join=scheduler the gateway has the same loop",
    "process",
    "state",
)
LINKS: Final = _gauge("nereid_links", "Open streams to the scheduler, by the kind of peer", "peer")
LINK_PENDING: Final = _gauge(
    "nereid_link_pending_requests", "Pending requests of one gateway's link", "link"
)
# Kinds of devices that requests wait for. Every executor has a cpu.
DEVICES: Final = ("cpu", "gpu", "any")
WAITING: Final = _gauge(
    "nereid_pending_requests",
    "Requests that wait for an instance, by the devices that their models may be on: those of"
    " nv_inference_pending_request_count and nereid_held_requests",
    "device",
)
HELD: Final = _gauge("nereid_held_requests", "Requests that wait for their model's first load")
STATE_FAILURES: Final = _counter(
    "nereid_state_failures_total",
    "Reads and writes of the scheduler's state that failed (--state-directory)",
)
REPOSITORY_STALE: Final = _gauge(
    "nereid_repository_stale",
    "Whether a repository could not be listed last, so that its models remain as they were (1)",
    "repository",
)
MODEL_UNAVAILABLE: Final = _gauge(
    "nereid_model_unavailable",
    "Whether a version could not be loaded (1); without a version: a model that has none",
    *_MODEL,
)
CACHE_STORES: Final = _counter("nereid_cache_stores_total", "Responses stored in the cache")
CACHE_FAILURES: Final = _counter(
    "nereid_cache_failures_total", "Lookups and stores that the cache's store failed"
)
CACHE_USED: Final = _gauge("nereid_cache_used_bytes", "Memory that the cache's responses take")
CACHE_CAPACITY: Final = _gauge("nereid_cache_capacity_bytes", "Memory that the cache may take")


HTTP_RESPONSES: Final = _counter(
    "nereid_gateway_http_responses_total", "Responses to HTTP requests, by status", "status"
)
GRPC_RESPONSES: Final = _counter(
    "nereid_gateway_grpc_responses_total", "Responses to gRPC calls, by status", "status"
)
GATEWAY_PENDING: Final = _gauge(
    "nereid_gateway_pending_requests", "Pending inference requests of this gateway"
)
GATEWAY_CONNECTIONS: Final = _gauge(
    "nereid_gateway_http_connections", "Open connections of HTTP clients"
)
GATEWAY_GRPC_CONNECTIONS: Final = _gauge(
    "nereid_gateway_grpc_connections",
    "Open connections of gRPC clients; not with --grpc-engine=grpcio",
)
GATEWAY_LARGE_TEXTS: Final = _counter(
    "nereid_gateway_large_texts_total",
    "Large requests and responses that are text (JSON or typed contents) and no raw tensors",
    "model",
)
GATEWAY_LARGE_TEXT_SECONDS: Final = _counter(
    "nereid_gateway_large_text_seconds_total",
    "Time from the arrival of such a text until it is decoded, or encoded",
    "model",
)
GATEWAY_LINKED: Final = _gauge(
    "nereid_gateway_linked", "Schedulers that this gateway is connected to"
)
ACCESS_LOG_DROPPED: Final = _counter(
    "nereid_gateway_access_log_dropped_total",
    "Lines of --access-log that were dropped, because the file was full or too slow",
)
SHADOW_COPIES: Final = _counter(
    "nereid_shadow_copies_total", "Copies of requests that were sent to the model's shadow", "model"
)
SHADOW_COMPARED: Final = _counter(
    "nereid_shadow_compared_total",
    "Requests whose response was compared with the shadow's, since it was set",
    "model",
)
SHADOW_NOT_COMPARED: Final = _counter(
    "nereid_shadow_not_compared_total",
    "Chosen requests that were not copied, or whose copies have no response, by reason",
    "model",
    "reason",
)
SHADOW_DIFFERENCES: Final = _counter(
    "nereid_shadow_differences_total",
    "Differences between the model's responses and its shadow's, by kind",
    "model",
    "kind",
)
ACCESS_REFUSALS: Final = _counter(
    "nereid_gateway_access_refusals_total",
    "Calls and requests refused by client authentication (--auth-config), by reason",
    "reason",
)
_GEN_AI: Final = ("gen_ai_operation_name", "gen_ai_provider_name", "gen_ai_request_model")
GEN_AI_DURATION: Final = Family(
    "gen_ai_server_request_duration_seconds",
    "histogram",
    "Durations of calls of OpenAI's API (--openai-api), with the class of their error if they had"
    " one",
    (*_GEN_AI, "error_type"),
)
GEN_AI_TOKENS: Final = Family(
    "gen_ai_client_token_usage",
    "histogram",
    "Tokens of calls of OpenAI's API, by input and output",
    (*_GEN_AI, "gen_ai_token_type"),
)
GEN_AI_FIRST_TOKEN: Final = Family(
    "gen_ai_server_time_to_first_token_seconds",
    "histogram",
    "Times from a call of OpenAI's API to the first token of its generated text",
    _GEN_AI,
)
GEN_AI_NEXT_TOKEN: Final = Family(
    "gen_ai_server_time_per_output_token_seconds",
    "histogram",
    "Mean times of the other tokens of each generated text",
    _GEN_AI,
)
EXECUTOR_JOINED: Final = _gauge(
    "nereid_executor_joined", "1 while this executor is joined to the scheduler, else 0"
)
EXECUTOR_INSTANCES: Final = _gauge(
    "nereid_executor_instances", "Instances of this executor", *_MODEL
)
EXECUTOR_BATCHES: Final = _counter(
    "nereid_executor_batches_total", "Batches that this executor has executed", *_MODEL
)


def write_cache(page: Page, usage: pb.CacheUsage) -> None:
    """Add the metrics of a cache, from the usage that it reported."""
    page.add_value(CACHE_ENTRIES, usage.entries)
    page.add_value(CACHE_LOOKUPS, usage.lookups)
    page.add_value(CACHE_ALL_HITS, usage.hits)
    page.add_value(CACHE_ALL_MISSES, usage.lookups - usage.hits)
    page.add_value(CACHE_EVICTIONS, usage.evictions)
    page.add_value(CACHE_LOOKUP_DURATION, usage.lookup_ns // 1000)
    page.add_value(CACHE_INSERTION_DURATION, usage.store_ns // 1000)
    # A cache without a size limit is never full.
    page.add_value(
        CACHE_UTIL, usage.used_bytes / usage.capacity_bytes if usage.capacity_bytes else 0
    )
    page.add_value(CACHE_STORES, usage.stores)
    page.add_value(CACHE_FAILURES, usage.failures)
    page.add_value(CACHE_USED, usage.used_bytes)
    page.add_value(CACHE_CAPACITY, usage.capacity_bytes)


def declared_families() -> Iterator[Family]:
    """Yield every metric that this module declares, in order."""
    for value in globals().values():
        if isinstance(value, Family):
            yield value
        elif isinstance(value, dict):
            yield from (family for family in value.values() if isinstance(family, Family))
