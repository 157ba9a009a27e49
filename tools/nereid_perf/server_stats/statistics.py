"""Computes how the server's time for a request divides, from its statistics before and after."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from nereid_perf.measurement import ServerSplit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    # Key: (model, version). Value: its entry in `model_stats`.
    Statistics = Mapping[tuple[str, str], Mapping[str, Any]]


_PHASES: Final = (
    "queue",
    "compute_input",
    "compute_infer",
    "compute_output",
    "cache_hit",
    "cache_miss",
)


def statistics_by_version(entries: Iterable[Mapping[str, Any]]) -> dict[tuple[str, str], Any]:
    """Map each model's name and version to its entry."""
    return {(str(entry["name"]), str(entry.get("version", ""))): entry for entry in entries}


def server_splits(before: Statistics, after: Statistics) -> tuple[ServerSplit, ...]:
    """Return each version's time split; a version that was loaded in between starts at 0."""
    splits = []
    for (model, version), entry in after.items():
        earlier = before.get((model, version), {})
        requests = _count(entry, "success") - _count(earlier, "success")
        if requests < 0:
            earlier, requests = {}, _count(entry, "success")
        if not requests:
            continue
        means = {f"{phase}_us": _mean_us(entry, earlier, phase) for phase in _PHASES}
        splits.append(
            ServerSplit(
                model=model,
                version=version,
                requests=requests,
                executions=_number(entry, "execution_count") - _number(earlier, "execution_count"),
                cache_hits=_count(entry, "cache_hit") - _count(earlier, "cache_hit"),
                cache_misses=_count(entry, "cache_miss") - _count(earlier, "cache_miss"),
                total_us=_mean_us(entry, earlier, "success"),
                **means,
            )
        )
    return tuple(splits)


def composing_models(model: str, config_of: Callable[[str], Mapping[str, Any] | None]) -> list[str]:
    """Return all models that an ensemble calls, at any depth; empty if it is not an ensemble."""
    models: dict[str, None] = {}
    waiting = [model]
    while waiting:
        config = config_of(waiting.pop()) or {}
        for step in (config.get("ensemble_scheduling") or {}).get("step", ()):
            name = str(step["model_name"])
            if name not in models and name != model:
                models[name] = None
                waiting.append(name)
    return list(models)


def _number(entry: Mapping[str, Any], name: str) -> int:
    # 64-bit numbers are strings in protobuf's JSON.
    return int(entry.get(name) or 0)


def _duration(entry: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    duration: Mapping[str, Any] = (entry.get("inference_stats") or {}).get(name) or {}
    return duration


def _count(entry: Mapping[str, Any], name: str) -> int:
    return _number(_duration(entry, name), "count")


def _mean_us(after: Mapping[str, Any], before: Mapping[str, Any], name: str) -> float | None:
    count = _count(after, name) - _count(before, name)
    if count <= 0:
        return None
    total_ns = _number(_duration(after, name), "ns") - _number(_duration(before, name), "ns")
    return total_ns / count / 1000
