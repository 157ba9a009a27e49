"""The summary that is printed at the end: perf_analyzer's lines and more, then the findings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from nereid_perf.distribution import deviation_us, mean_us, percentile_us, percentiles_us
from nereid_perf.output.csv_file import PERCENTILES
from nereid_perf.questions.knee import find_knee
from nereid_perf.questions.levels import CONCURRENCY, RATE
from nereid_perf.questions.metrics import (
    attempts,
    error_share,
    parse_metric,
    rate_text,
    time_text,
)
from nereid_perf.questions.slo import parse_slo

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hdrh.histogram import HdrHistogram

    from nereid_perf.measurement import LoadLevel, Measurement, ServerSplit
    from nereid_perf.output.result import FoundRate, MeasuredServer, Result
    from nereid_perf.questions.comparison import Comparison, Ratio

# Maximum number of different failures: each request may have its own text.
_MAX_FAILURES: Final = 5
_KINDS: Final = {CONCURRENCY: "Request concurrency", RATE: "Request Rate"}


def summary_lines(result: Result) -> list[str]:
    """Return the lines about all levels and all findings."""
    lines: list[str] = []
    for index, server in enumerate(result.servers):
        if len(result.servers) > 1:
            lines.append(f"*** {'AB'[index]}: {server.url} ***")
        if result.comparisons:
            continue
        if result.max_rate is None:
            for measurement in server.measurements:
                lines += level_lines(server, measurement)
        lines += _table(server, result.percentile)
    return [*lines, *finding_lines(result)]


def finding_lines(result: Result) -> list[str]:
    """Return the lines about the knee, highest rate, comparison, violations, and notes."""
    lines = []
    for server in result.servers:
        knee = find_knee(server.measurements, parse_metric(f"p{result.percentile:g}"))
        if knee is not None and not result.comparisons and result.max_rate is None:
            lines.append(
                f"Knee (most rate per p{result.percentile:g}): {level_text(knee.level)},"
                f" {rate_text(knee.rate)}, {time_text(knee.latency_us)}"
                + ("" if knee.is_inside else "; an end of the range: it may be beyond")
            )
        if result.slo and result.max_rate is None and not result.comparisons:
            slo = parse_slo(result.slo)
            lines += [
                f"{level_text(measurement.level)}: goodput {rate_text(slo.goodput(measurement))}"
                f" under {slo.text}{'' if slo.is_met(measurement) else ', which is missed'}"
                for measurement in server.measurements
            ]
    if result.max_rate is not None:
        lines.append(max_rate_text(result.max_rate))
    for comparison in result.comparisons:
        lines += comparison_lines(comparison)
    lines += [f"Failed: {violation}" for violation in result.violations]
    return [*lines, *result.notes]


def level_lines(server: MeasuredServer, measurement: Measurement) -> list[str]:
    """Return the lines about one level, as perf_analyzer prints them."""
    lines = [level_text(measurement.level, ": "), "  Client:"]
    lines += [f"    {line}" for line in _client_lines(server, measurement)]
    for model, own in measurement.models.items():
        lines.append(
            f"    {model}: {own.requests} requests, {rate_text(own.requests_per_s)}, "
            f"p50 {time_text(percentile_us(own.latencies.response, 50))}, "
            f"p99 {time_text(percentile_us(own.latencies.response, 99))}"
        )
    if measurement.server:
        first, *others = measurement.server
        if len(server.models) > 1:
            others = [first, *others]
            lines += ["  Server:", "    Models:"]
        else:
            lines += ["  Server:", *_server_lines(server, first, "    ")]
            lines += ["    Composing models:"] * bool(others)
        for split in others:
            lines.append(f"      {split.model}, version: {split.version}")
            lines += _server_lines(server, split, "        ")
    if measurement.timings:
        lines.append("  Server-Timing (mean, p99):")
        lines += [
            f"    {name}: {timing.mean_us:.0f} usec, {timing.p99_us:.0f} usec"
            for name, timing in measurement.timings.items()
        ]
    if measurement.gauges:
        lines.append("  Server Prometheus Metrics (mean, largest):")
        lines += [
            f"    {name}: {mean:.6g}, {largest:.6g}"
            for name, (mean, largest) in sorted(measurement.gauges.items())
        ]
    return lines


def level_text(level: LoadLevel, sign: str = " ") -> str:
    """Return a text such as "Request concurrency 4"."""
    if level.kind not in _KINDS:
        return "Trace"
    return f"{_KINDS[level.kind]}{sign}{level.value:g}"


def max_rate_text(found: FoundRate) -> str:
    """Return the highest rate as text, or the reason why there is none."""
    text = f"Highest rate under {found.slo}: "
    if not found.rate:
        return f"{text}none ({found.outcome})"
    text += f"{rate_text(found.rate)}, goodput {rate_text(found.goodput)}"
    text += f", kept by {found.confirmed_by} measurement{'s' * (found.confirmed_by != 1)}"
    if found.missed_at is not None:
        text += f"; missed at {rate_text(found.missed_at)}"
    return text if found.outcome == "found" else f"{text}; {found.outcome}"


def comparison_lines(comparison: Comparison) -> list[str]:
    """Return a line for each ratio."""
    how = "pairs of rounds" if comparison.is_paired else "rounds each, unpaired"
    head = f"B to A at {level_text(comparison.level)}: {comparison.rounds} {how}"
    lines = [f"  {ratio_text(ratio)}" for ratio in comparison.ratios]
    lines += [f"  {comparison.note}"] if comparison.note else []
    return [f"{head}, {100 * comparison.confidence:g} % intervals", *lines]


def ratio_text(ratio: Ratio) -> str:
    """Return a text such as "rate: 1.031 (1.020 to 1.042): different; A 100/s, B 103/s"."""
    return (
        f"{ratio.metric}: {ratio.ratio:.3f} ({ratio.interval_text}): {ratio.outcome};"
        f" A {ratio.value_text(ratio.a)}, B {ratio.value_text(ratio.b)}"
    )


def _client_lines(server: MeasuredServer, measurement: Measurement) -> Iterator[str]:
    response = measurement.latencies.response
    yield f"Request count: {measurement.requests}"
    yield f"Throughput: {measurement.requests_per_s * server.batch_size:.6g} infer/sec"
    if server.is_decoupled:
        responses = measurement.responses / measurement.duration_s
        yield f"Response Throughput: {responses:.6g} infer/sec"
    if measurement.input_tokens or measurement.output_tokens:
        inputs = measurement.input_tokens / measurement.duration_s
        outputs = measurement.output_tokens / measurement.duration_s
        yield f"Token Throughput: {inputs:.6g} input/sec, {outputs:.6g} output/sec"
    yield (
        f"Avg latency: {mean_us(response):.0f} usec"
        f" (standard deviation {deviation_us(response):.0f} usec)"
    )
    for rank, us in zip(PERCENTILES, percentiles_us(response, PERCENTILES), strict=True):
        yield f"p{rank} latency: {us:.0f} usec"
    if measurement.level.kind != CONCURRENCY:
        yield f"Service time (from sending): {_two(measurement.latencies.service)}"
    if server.is_decoupled:
        first = "Time to first token" if measurement.output_tokens else "First response"
        yield f"{first}: {_two(measurement.latencies.first)}"
        yield f"Between responses: {_two(measurement.latencies.between)}"
    yield from _failure_lines(measurement)
    yield from _cost_lines(measurement)
    if not measurement.is_stable:
        yield f"[WARNING] Not stable after {measurement.windows} windows."


def _failure_lines(measurement: Measurement) -> Iterator[str]:
    if measurement.failures:
        failed = attempts(measurement) - measurement.requests
        yield f"Failed request count: {failed} ({100 * error_share(measurement):.3g} %)"
        most = sorted(measurement.failures.items(), key=lambda item: -item[1])
        for text, count in most[:_MAX_FAILURES]:
            yield f"  {count}: {text}"
        if len(most) > _MAX_FAILURES:
            yield f"  and {len(most) - _MAX_FAILURES} other errors"
    if measurement.cancelled:
        yield f"Cancelled request count: {measurement.cancelled}"


def _cost_lines(measurement: Measurement) -> Iterator[str]:
    client = measurement.client
    yield (
        f"Client CPU: {client.cpu_us:.1f} usec per request,"
        f" busiest worker {100 * client.busy:.0f} % of a CPU"
    )
    if client.delayed:
        share = 100 * client.delayed / max(attempts(measurement), 1)
        yield f"Delayed request count: {client.delayed} ({share:.3g} %)"
    if client.is_bottleneck:
        yield "[WARNING] The client was the bottleneck: this says more of it than of the server."


def _server_lines(server: MeasuredServer, split: ServerSplit, indent: str) -> list[str]:
    lines = [
        f"Inference count: {split.requests * server.batch_size}",
        f"Execution count: {split.executions}",
    ]
    if split.cache_hits or split.cache_misses:
        lines += [
            f"Cache hit count: {split.cache_hits}",
            f"Cache miss count: {split.cache_misses}",
        ]
    lines.append(f"Successful request count: {split.requests}")
    phases = {
        "queue": split.queue_us,
        "compute input": split.compute_input_us,
        "compute infer": split.compute_infer_us,
        "compute output": split.compute_output_us,
    }
    known = {name: us for name, us in phases.items() if us is not None}
    if known:
        parts = {**known}
        if split.total_us is not None:
            parts = {"overhead": max(0.0, split.total_us - sum(known.values())), **known}
        text = " + ".join(f"{name} {us:.0f} usec" for name, us in parts.items())
        lines.append(f"Avg request latency: {sum(parts.values()):.0f} usec ({text})")
    return [f"{indent}{line}" for line in lines]


def _table(server: MeasuredServer, percentile: float) -> list[str]:
    lines = [f"Inferences/Second vs. Client p{percentile:g} Batch Latency"]
    for measurement in server.measurements:
        us = percentile_us(measurement.latencies.response, percentile)
        rate = measurement.requests_per_s * server.batch_size
        level = level_text(measurement.level, ": ").removeprefix("Request concurrency")
        level = f"Concurrency{level}" if level.startswith(":") else level
        lines.append(f"{level}, throughput: {rate:.6g} infer/sec, latency {us:.0f} usec")
    return lines


def _two(histogram: HdrHistogram) -> str:
    p50, p99 = percentiles_us(histogram, (50, 99))
    return f"p50 {p50:.0f} usec, p99 {p99:.0f} usec"
