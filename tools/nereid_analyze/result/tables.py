"""Makes CSV tables with Model Analyzer's columns: a row for each measurement."""

from __future__ import annotations

import csv
import io
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from nereid_analyze.goal import METRICS
from nereid_analyze.space.override import overridden

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nereid_analyze.job import Job
    from nereid_analyze.search.trial import Sample
    from nereid_analyze.space.candidate import Candidate
    from nereid_perf.measurement import Measurement

_HEADERS: Final = {
    "model_name": "Model",
    "batch_size": "Batch",
    "concurrency": "Concurrency",
    "request_rate": "Request Rate",
    "model_config_path": "Model Config Path",
    "instance_group": "Instance Group",
    "max_batch_size": "Max Batch Size",
    "satisfies_constraints": "Satisfies Constraints",
    "gpu_uuid": "GPU UUID",
}
_PARAMETER: Final = "backend_parameter/"
_UUID: Final = re.compile(r'gpu_uuid="([^"]*)"')
_SERVER: Final = "triton-server"


def inference_table(job: Job, samples: Sequence[Sample]) -> str:
    """Return a row for each sample: samples that keep the constraints first, then by throughput."""
    names = candidate_names(job, samples)
    fields = _with_rates(job.fields["inference"], samples)
    rows = [_row(job, sample, fields, names) for sample in _ordered(job, samples)]
    return _text(fields, rows)


def gpu_table(job: Job, samples: Sequence[Sample]) -> str:
    """Return a row for each GPU of each measurement; empty if there is no GPU."""
    names = candidate_names(job, samples)
    fields = _with_rates(job.fields["gpu"], samples)
    rows = []
    for sample in _ordered(job, samples):
        for uuid in _gpus(sample.measurement):
            row = _row(job, sample, fields, names, gpu=uuid)
            rows.append(row)
    return _text(fields, rows)


def server_table(job: Job, samples: Sequence[Sample]) -> str:
    """Return a row with the server's gauges from before there was any load."""
    fields = job.fields["server"]
    rows = []
    for sample in samples[:1]:
        idle = replace(sample.measurement, gauges=job.idle)
        for uuid in _gpus(idle):
            values = {"model_name": _SERVER, "gpu_uuid": uuid}
            rows.append([_cell(values.get(name, _figure(name, idle, uuid))) for name in fields])
    return _text(fields, rows)


def candidate_names(job: Job, samples: Sequence[Sample]) -> dict[Candidate, str]:
    """Return names as Model Analyzer makes them: model_config_default, model_config_0, ..."""
    names = {job.space.default: f"{job.title}_config_default"}
    for sample in samples:
        candidate = sample.trial.candidate
        if candidate not in names:
            names[candidate] = f"{job.title}_config_{len(names) - 1}"
    return names


def _ordered(job: Job, samples: Sequence[Sample]) -> list[Sample]:
    return sorted(
        samples,
        key=lambda sample: (
            not job.goal.is_met(sample.measurement),
            -sample.measurement.requests_per_s * sample.trial.batch_size,
        ),
    )


def _with_rates(fields: Sequence[str], samples: Sequence[Sample]) -> list[str]:
    columns = list(fields)
    if (
        any(sample.trial.level.kind == "rate" for sample in samples)
        and "request_rate" not in columns
    ):
        at = columns.index("concurrency") + 1 if "concurrency" in columns else len(columns)
        columns.insert(at, "request_rate")
    return columns


def _row(
    job: Job,
    sample: Sample,
    fields: Sequence[str],
    names: Mapping[Candidate, str],
    gpu: str = "",
) -> list[str]:
    trial, measurement = sample.trial, sample.measurement
    configs = _configs(job, trial.candidate)
    is_rate = trial.level.kind == "rate"
    values: dict[str, Any] = {
        "model_name": ",".join(job.models),
        "batch_size": trial.batch_size,
        "concurrency": None if is_rate else int(trial.level.value),
        "request_rate": trial.level.value if is_rate else None,
        "model_config_path": names[trial.candidate],
        "instance_group": ",".join(_instances(config) for config in configs),
        "max_batch_size": ",".join(str(config.get("max_batch_size") or 0) for config in configs),
        "satisfies_constraints": "Yes" if job.goal.is_met(measurement) else "No",
        "gpu_uuid": gpu,
        "perf_throughput": measurement.requests_per_s * trial.batch_size,
    }
    row = []
    for field in fields:
        if field in values:
            row.append(_cell(values[field]))
        elif field.startswith(_PARAMETER):
            parameters = configs[0].get("parameters") or {}
            entry = parameters.get(field.removeprefix(_PARAMETER)) or {}
            row.append(_cell(entry.get("string_value")))
        else:
            row.append(_cell(_figure(field, measurement, gpu)))
    return row


def _configs(job: Job, candidate: Candidate) -> list[dict[str, Any]]:
    """Return the configurations of the models with settings, or else of those that get requests."""
    default = job.space.default
    tuned = dict.fromkeys(model for model, _, _ in candidate.choices if model) or job.models
    configs = []
    for model in tuned:
        present = default.values(model)
        values = {
            name: value for name, value in candidate.values(model).items() if value != present[name]
        }
        configs.append(overridden(job.configs[model], values, cpu_only=model in job.cpu_only))
    return configs


def _instances(config: Mapping[str, Any]) -> str:
    """Return a text such as 2:CPU, or 1:GPU + 2:CPU."""
    counts: dict[str, int] = {}
    for group in config.get("instance_group") or [{}]:
        kind = str(group.get("kind") or "KIND_AUTO").removeprefix("KIND_")
        number = int(group.get("count") or 1) * max(len(group.get("gpus") or ()), 1)
        counts[kind] = counts.get(kind, 0) + number
    return " + ".join(f"{number}:{kind}" for kind, number in counts.items())


def _gpus(measurement: Measurement) -> list[str]:
    uuids: dict[str, None] = {}
    for name in measurement.gauges:
        matched = _UUID.search(name) if name.startswith("nv_gpu_") else None
        if matched is not None:
            uuids[matched[1]] = None
    return list(uuids)


def _figure(field: str, measurement: Measurement, gpu: str = "") -> float | None:
    metric = METRICS.get(field)
    if metric is None:
        return None
    if gpu:
        gauges = {name: value for name, value in measurement.gauges.items() if f'"{gpu}"' in name}
        measurement = replace(measurement, gauges=gauges)
    return metric.value(measurement)


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return str(round(value, 1))
    return "None" if value is None else str(value)


def _text(fields: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(
        [
            _HEADERS.get(field) or (METRICS[field].header if field in METRICS else field)
            for field in fields
        ]
    )
    writer.writerows(rows)
    return out.getvalue()
