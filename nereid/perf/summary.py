"""A measurement as lines of text. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hdrh.histogram import HdrHistogram

    from nereid.perf.measurement import ClientCost, LoadLevel, Measurement, ServerSplit

_PERCENTILES: Final = (50, 90, 95, 99)
_US: Final = 1000
_MOST_FAILURES: Final = 5


def level_text(level: LoadLevel) -> str:
    if level.kind == "concurrency":
        return f"Request concurrency: {level.value:g}"
    if level.kind == "rate":
        return f"Request rate: {level.value:g} per second"
    return f"Recorded times, at speed {level.value:g}"


def summary_lines(measurement: Measurement) -> Iterator[str]:
    """Without the level."""
    latencies = measurement.latencies
    yield "  Client:"
    yield f"    Requests: {measurement.requests} in {measurement.duration_s:.1f} s"
    yield f"    Throughput: {measurement.requests_per_s:.2f} infer/sec"
    yield f"    Latency: {_percentiles(latencies.response)}"
    if measurement.level.kind != "concurrency":
        yield f"    Of it service time: {_percentiles(latencies.service)}"
    if measurement.responses != measurement.requests:
        yield f"    Responses: {measurement.responses}"
        yield f"    To the first response: {_percentiles(latencies.first)}"
        yield f"    Between responses: {_percentiles(latencies.between)}"
    yield from _failures(measurement)
    yield from _client(measurement.client)
    if not measurement.is_stable:
        yield f"    Not stable in {measurement.windows} windows"
    if measurement.server:
        yield "  Server:"
    for split in measurement.server:
        yield f"    {split.model} {split.version}: {_split_text(split)}"
    for name, (mean, largest) in measurement.gauges.items():
        if "gpu" in name:
            yield f"    {name}: {mean:g}, at most {largest:g}"


def _failures(measurement: Measurement) -> Iterator[str]:
    if measurement.cancelled:
        yield f"    Cancelled: {measurement.cancelled}"
    worst = sorted(measurement.failures.items(), key=lambda each: -each[1])
    for text, number in worst[:_MOST_FAILURES]:
        yield f"    Failed: {number} with: {text}"
    if len(worst) > _MOST_FAILURES:
        yield f"    Failed with others: {sum(number for _, number in worst[_MOST_FAILURES:])}"


def _client(client: ClientCost) -> Iterator[str]:
    yield (
        f"    Own CPU: {client.cpu_us:.1f} us per request, the busiest worker"
        f" {client.busy:.0%} of one"
    )
    if client.delayed:
        yield f"    Sent late: {client.delayed}"
    if client.is_bottleneck:
        yield "    The client was the bottleneck: give it --workers, or a machine of its own"


def percentile_ns(histogram: HdrHistogram, percentile: float) -> int:
    """0: nothing was recorded."""
    return int(histogram.get_value_at_percentile(percentile)) if histogram.total_count else 0


def _percentiles(histogram: HdrHistogram) -> str:
    values = (f"p{each} {percentile_ns(histogram, each) / _US:.0f}" for each in _PERCENTILES)
    mean = histogram.get_mean_value() if histogram.total_count else 0
    return f"{', '.join(values)}, mean {mean / _US:.0f} usec"


def _split_text(split: ServerSplit) -> str:
    phases = (
        ("queue", split.queue_us),
        ("compute input", split.compute_input_us),
        ("compute infer", split.compute_infer_us),
        ("compute output", split.compute_output_us),
    )
    said = " + ".join(f"{name} {mean:.0f}" for name, mean in phases if mean is not None)
    cached = f", {split.cache_hits} from the cache" if split.cache_hits else ""
    return f"{split.requests} requests in {split.executions} executions{cached}, {said} usec"
