"""The sections of the console's document beside models, and those of `details`. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from nereid.model_config.render import message_json
from nereid.observability import metrics
from nereid.pb import nereid_pb2 as pb
from nereid.services.gateway.console.counters import Counters, mean_durations, per_second

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from nereid.facts import document
    from nereid.observability.metrics_page import Family
    from nereid.pb.model_config_pb2 import ModelConfig
    from nereid.services.gateway.console.look import Look
    from nereid.services.gateway.console.queries import View

_MAX_EXECUTORS: Final = 500
_MAX_TENANTS: Final = 200


def _all(_name: str) -> bool:
    return True


def summary(look: Look, earlier: Look, shows: Callable[[str], bool] = _all) -> document.Summary:
    """The mesh at a glance. earlier: the same as look if there was none before. shows: whether the
    viewer may see a model; what is counted by model is of these.
    """
    index = [entry for entry in look.index if shows(entry.key.name)]
    states: dict[str, int] = {}
    for entry in index:
        states[entry.state] = states.get(entry.state, 0) + 1
    waiting = look.mesh.by_label(metrics.WAITING.name, "device")
    elapsed_s = look.time_s - earlier.time_s
    own = Counters(look.own, earlier.own, elapsed_s)
    models = [
        # Of a model that was not read before, nothing is known of the interval.
        Counters(samples, earlier.models.get(key, samples), elapsed_s)
        for key, samples in look.models.items()
        if shows(key[0])
    ]

    def recently(family: Family) -> float:
        """Of all models; of each no less than 0, as counters begin anew with a load."""
        return sum(each.recently(family) for each in models)

    return {
        "models": len(index),
        "states": states,
        "failed": sum(entry.failed for entry in index),
        "executors": len(look.hosting.executors),
        "schedulers": len(look.hosting.schedulers),
        "pending": int(sum(waiting.values())),
        "held": int(look.mesh.total(metrics.HELD.name) or 0),
        "waiting": {device: int(count) for device, count in waiting.items()},
        "requests_per_s": per_second(recently(metrics.SUCCESS), elapsed_s),
        "errors_per_s": per_second(recently(metrics.FAILURE), elapsed_s),
        "latency_us": mean_durations(recently),
        "partial": look.partial,
        "http": own.rates_by(metrics.HTTP_RESPONSES, "status"),
        "grpc": own.rates_by(metrics.GRPC_RESPONSES, "status"),
        "http_connections": own.total(metrics.GATEWAY_CONNECTIONS),
        "grpc_connections": own.total(metrics.GATEWAY_GRPC_CONNECTIONS),
    }


def cache(look: Look, earlier: Look) -> document.Cache | None:
    """None: the mesh has no cache."""
    counters = Counters(look.mesh, earlier.mesh, look.time_s - earlier.time_s)
    if counters.value(metrics.CACHE_CAPACITY) is None:
        return None
    return {
        "entries": counters.total(metrics.CACHE_ENTRIES),
        "used_bytes": counters.total(metrics.CACHE_USED),
        "capacity_bytes": counters.total(metrics.CACHE_CAPACITY),
        "hits_per_s": counters.rate(metrics.CACHE_ALL_HITS),
        "misses_per_s": counters.rate(metrics.CACHE_ALL_MISSES),
        "hits": counters.total(metrics.CACHE_ALL_HITS),
        "lookups": counters.total(metrics.CACHE_LOOKUPS),
        "evictions": counters.total(metrics.CACHE_EVICTIONS),
        "failures": counters.total(metrics.CACHE_FAILURES),
    }


def schedulers(look: Look) -> dict[str, document.Scheduler]:
    """By name."""
    return {
        each.name: {
            "name": each.name,
            "reachable": each.reachable,
            "models": each.models,
            "owned": list(each.owned),
            "gateways": each.gateways,
            "epoch": each.epoch,
        }
        for each in look.hosting.schedulers
    }


def owners(look: Look) -> dict[str, str]:
    """Which scheduler has which model, where there are several."""
    if len(look.hosting.schedulers) < 2:
        return {}
    return {name: each.name for each in look.hosting.schedulers for name in each.owned}


def executors(look: Look) -> dict[str, document.Executor]:
    """By name."""
    return {each.name: _executor(each) for each in look.hosting.executors[:_MAX_EXECUTORS]}


def _executor(facts: pb.ExecutorFacts) -> document.Executor:
    return {
        "name": facts.name,
        "host": facts.host,
        "backends": list(facts.backends),
        "instances": sum(each.instances for each in facts.hosted),
        "busy": sum(each.busy for each in facts.hosted),
        "devices": [_device(each, facts) for each in facts.devices],
    }


def _device(device: pb.Device, facts: pb.ExecutorFacts) -> document.Device:
    is_gpu = device.kind == pb.Device.GPU
    # As executors name the devices of memory that loads took.
    name = f"gpu{device.id}" if is_gpu else "cpu"
    shown: document.Device = {
        "name": name,
        "memory_total_bytes": device.memory_bytes,
        "tenants": [
            {
                "model": each.model,
                "version": str(each.version),
                "instances": each.instances,
                "memory_bytes": each.memory_bytes.get(name, 0),
            }
            for each in facts.hosted[:_MAX_TENANTS]
            if each.memory_bytes.get(name) or (not is_gpu and not each.memory_bytes)
        ],
    }
    if device.uuid:
        shown["uuid"] = device.uuid
    if not facts.HasField("usage"):
        return shown
    if not is_gpu:
        shown["memory_total_bytes"] = facts.usage.memory_total_bytes
        shown["memory_used_bytes"] = facts.usage.memory_used_bytes
        shown["utilization"] = round(facts.usage.cpu_utilization, 3)
    for gpu in facts.usage.gpus:
        if is_gpu and gpu.uuid == device.uuid:
            shown["memory_total_bytes"] = gpu.memory_total_bytes
            shown["memory_used_bytes"] = gpu.memory_used_bytes
            shown["utilization"] = round(gpu.utilization, 3)
            shown["power_watts"] = round(gpu.power_usage_watts, 1)
    return shown


def limited(
    shared: Mapping[str, Any], look: Look, earlier: Look, shows: Callable[[str], bool]
) -> dict[str, Any]:
    """What a viewer may know of the sections that name models. shows: whether it may see one."""

    def device(found: document.Device) -> document.Device:
        tenants = [each for each in found["tenants"] if shows(each["model"])]
        return {**found, "tenants": tenants}

    def scheduler(found: document.Scheduler) -> document.Scheduler:
        owned = [*filter(shows, found["owned"])]
        return {**found, "owned": owned, "models": len(owned)}

    return {
        "summary": summary(look, earlier, shows),
        "slow_requests": [each for each in shared["slow_requests"] if shows(each["model"])],
        "executors": {
            name: {**each, "devices": [*map(device, each["devices"])]}
            for name, each in shared["executors"].items()
        },
        "schedulers": {name: scheduler(each) for name, each in shared["schedulers"].items()},
    }


def batches(look: Look, view: View) -> dict[str, list[document.Batch]]:
    """Of the model of a view, by version."""
    found: dict[str, list[document.Batch]] = {}
    for each in look.hosting.batches:
        version = str(each.version)
        if each.model == view.model and view.version in ("", version):
            batch: document.Batch = {
                "time_s": round(look.time_s - each.age_us / 1e6, 3),
                "duration_us": each.age_us,
                "instance": each.instance,
                "reason": each.reason,
                "rows": each.rows,
                "members": [
                    {
                        "request_id": member.request_id,
                        "rows": member.rows,
                        "queue_us": member.queue_us,
                    }
                    for member in each.members
                ],
            }
            found.setdefault(version, []).append(batch)
    return found


def configuration(declared: ModelConfig | None, effective: ModelConfig) -> document.Configuration:
    """Declared against effective."""
    after: dict[str, Any] = message_json(effective)
    before: dict[str, Any] = {} if declared is None else message_json(declared)
    return {
        "effective": after,
        "declared": before,
        "differences": [*_differences("", before, after)],
    }


def _differences(
    prefix: str, declared: dict[str, Any], effective: dict[str, Any]
) -> list[document.Difference]:
    found: list[document.Difference] = []
    for name in {**declared, **effective}:
        before, after = declared.get(name), effective.get(name)
        if before == after:
            continue
        if isinstance(before, dict) and isinstance(after, dict):
            found += _differences(f"{prefix}{name}.", before, after)
            continue
        difference: document.Difference = {"field": prefix + name}
        if before is not None:
            difference["declared"] = before
        if after is not None:
            difference["effective"] = after
        found.append(difference)
    return found
