"""Writes levels as CSV with perf_analyzer's columns, which scripts and Model Analyzer can read.

There is also a file for each composing model (name_v1.FILE) and each model of a mix (name.FILE).
Client Send and Client Recv are 0, because this client only copies bytes.
"""

from __future__ import annotations

import csv
import io
import re
from typing import TYPE_CHECKING, Final

from nereid_perf.distribution import mean_us, percentiles_us
from nereid_perf.questions.levels import CONCURRENCY

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from nereid_perf.measurement import Measurement, ServerSplit
    from nereid_perf.output.result import MeasuredServer

PERCENTILES: Final = (50, 90, 95, 99)

_GPU: Final = re.compile(r"(nv_gpu_\w+)\{.*?(?:gpu_uuid|uuid)=\"([^\"]*)\".*\}")
# Column, gauge, and 0 for the mean or 1 for the maximum.
_GPU_COLUMNS: Final = (
    ("Avg GPU Utilization", "nv_gpu_utilization", 0),
    ("Avg GPU Power Usage", "nv_gpu_power_usage", 0),
    ("Max GPU Memory Usage", "nv_gpu_memory_used_bytes", 1),
    ("Total GPU Memory", "nv_gpu_memory_total_bytes", 1),
)
_PHASES: Final = (
    ("Server Queue", "queue_us"),
    ("Server Compute Input", "compute_input_us"),
    ("Server Compute Infer", "compute_infer_us"),
    ("Server Compute Output", "compute_output_us"),
)
_CACHE: Final = (("Server Cache Hit", "cache_hit_us"), ("Server Cache Miss", "cache_miss_us"))


def write_csv(server: MeasuredServer, path: Path, *, verbose: bool = False) -> list[Path]:
    """Write the files, and return their paths. May raise OSError."""
    texts = csv_texts(server, path.name, verbose=verbose)
    for name, text in texts.items():
        path.with_name(name).write_text(text, encoding="utf-8")
    return [path.with_name(name) for name in texts]


def csv_texts(server: MeasuredServer, name: str, *, verbose: bool = False) -> dict[str, str]:
    """Map each file's name to its text."""
    levels = sorted(server.measurements, key=lambda measurement: measurement.requests_per_s)
    texts = {name: _text([_row(server, level, levels, verbose=verbose) for level in levels])}
    for split in _composing(levels):
        rows = [_composing_row(server, level, split, levels) for level in levels]
        texts[_file_name(f"{split.model}_v{split.version}.{name}")] = _text(rows)
    for model in {model: None for level in levels for model in level.models}:
        own = [level.models[model] for level in levels if model in level.models]
        rows = [_row(server, level, own, verbose=verbose) for level in own]
        texts[_file_name(f"{model}.{name}")] = _text(rows)
    return texts


def phases_us(split: ServerSplit, *, has_cache: bool) -> dict[str, float]:
    """Map perf_analyzer's name of each phase to the mean time; 0 if the server reports none."""
    columns = (*_PHASES, *_CACHE) if has_cache else _PHASES
    return {name: getattr(split, field) or 0.0 for name, field in columns}


def _row(
    server: MeasuredServer, level: Measurement, levels: Sequence[Measurement], *, verbose: bool
) -> dict[str, str]:
    average = mean_us(level.latencies.response)
    row = _first_columns(level, level.requests_per_s * server.batch_size)
    if server.is_decoupled:
        row["Response Throughput"] = _number(level.responses / level.duration_s)
    row["Client Send"] = "0"
    if any(level.server for level in levels):
        has_cache = any(_uses_cache(split) for level in levels for split in level.server[:1])
        split = level.server[0] if level.server else None
        phases = {} if split is None else phases_us(split, has_cache=has_cache)
        row["Network+Server Send/Recv"] = _us(max(0.0, average - sum(phases.values())))
        for name, _ in (*_PHASES, *_CACHE) if has_cache else _PHASES:
            row[name] = _us(phases.get(name, 0.0))
    row["Client Recv"] = "0"
    for rank, us in zip(
        PERCENTILES, percentiles_us(level.latencies.response, PERCENTILES), strict=True
    ):
        row[f"p{rank} latency"] = _us(us)
    if verbose:
        row["Avg latency"] = _us(average)
        row["request/response"] = "0"
        row["response wait"] = _us(average)
        row |= _gpu_columns(level, levels)
    return row


def _composing_row(
    server: MeasuredServer, level: Measurement, of: ServerSplit, levels: Sequence[Measurement]
) -> dict[str, str]:
    key = (of.model, of.version)
    split = next((split for split in level.server if (split.model, split.version) == key), None)
    has_cache = any(_uses_cache(split) for found in levels for split in found.server)
    phases = {} if split is None else phases_us(split, has_cache=has_cache)
    whole = 0.0 if split is None or split.total_us is None else split.total_us
    # Scale the rate of the ensemble's requests to this model's requests.
    ratio = 0.0 if split is None else split.requests / max(level.server[0].requests, 1)
    row = _first_columns(level, level.requests_per_s * server.batch_size * ratio)
    row["Client Send"] = "0"
    row["Network+Server Send/Recv"] = _us(max(0.0, whole - sum(phases.values())))
    for name, _ in (*_PHASES, *_CACHE) if has_cache else _PHASES:
        row[name] = _us(phases.get(name, 0.0))
    row["Client Recv"] = "0"
    return row


def _first_columns(level: Measurement, inferences_per_s: float) -> dict[str, str]:
    name = "Concurrency" if level.level.kind == CONCURRENCY else "Request Rate"
    return {name: _number(level.level.value), "Inferences/Second": _number(inferences_per_s)}


def _gpu_columns(level: Measurement, levels: Sequence[Measurement]) -> dict[str, str]:
    if not any(_GPU.fullmatch(name) for level in levels for name in level.gauges):
        return {}
    columns = {}
    for column, gauge, which in _GPU_COLUMNS:
        found = [
            (match[2], values[which])
            for name, values in sorted(level.gauges.items())
            if (match := _GPU.fullmatch(name)) is not None and match[1] == gauge
        ]
        columns[column] = "".join(f"{uuid}:{_number(value)};" for uuid, value in found)
    return columns


def _composing(levels: Sequence[Measurement]) -> list[ServerSplit]:
    """Return the time splits of composing models that are not models of the run themselves."""
    splits = {}
    for level in levels:
        for split in level.server[1:]:
            if split.model not in level.models:
                splits[split.model, split.version] = split
    return list(splits.values())


def _uses_cache(split: ServerSplit) -> bool:
    return split.cache_hits + split.cache_misses > 0


def _file_name(name: str) -> str:
    # A name may begin with a namespace, or come from a file of unknown origin.
    return name.replace("/", "_")


def _text(rows: Sequence[dict[str, str]]) -> str:
    out = io.StringIO()
    if rows:
        writer = csv.DictWriter(out, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return out.getvalue()


def _us(us: float) -> str:
    return str(int(us))


def _number(value: float) -> str:
    return f"{value:.6g}"
