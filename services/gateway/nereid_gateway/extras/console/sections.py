"""The sections of the console's document beside models, and those of `details`. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from nereid.model_config.render import message_json
from nereid.observability import metrics
from nereid.pb import nereid_pb2 as pb
from nereid_gateway.extras.console.counters import Counters, mean_durations, per_second

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from nereid.facts import document
    from nereid.observability.metrics_page import Family
    from nereid.pb.model_config_pb2 import ModelConfig
    from nereid_gateway.extras.console.look import Look
    from nereid_gateway.extras.console.queries import View

_MAX_EXECUTORS: Final = 500
_MAX_TENANTS: Final = 200


# What a device has of all models: nobody knows whose it is.
_OF_ALL_TENANTS: Final = frozenset({"memory_used_bytes", "utilization", "power_watts"})


def _all(_name: str) -> bool:
    return True


def summary(look: Look, earlier: Look) -> document.Summary:
    """The mesh at a glance. earlier: the same as look if there was none before."""
    waiting = look.mesh.by_label(metrics.WAITING.name, "device")
    own = Counters(look.own, earlier.own, look.time_s - earlier.time_s)
    return {
        **_summary_of(look, earlier, _all),
        "pending": int(sum(waiting.values())),
        "held": int(look.mesh.total(metrics.HELD.name) or 0),
        "waiting": {device: int(count) for device, count in waiting.items()},
        "http": own.rates_by(metrics.HTTP_RESPONSES, "status"),
        "grpc": own.rates_by(metrics.GRPC_RESPONSES, "status"),
        "http_connections": own.total(metrics.GATEWAY_CONNECTIONS),
        "grpc_connections": own.total(metrics.GATEWAY_GRPC_CONNECTIONS),
    }


def _summary_of(look: Look, earlier: Look, shows: Callable[[str], bool]) -> document.Summary:
    """What can be told apart by model, of those that shows() is true of."""
    index = [entry for entry in look.index if shows(entry.key.name)]
    states: dict[str, int] = {}
    for entry in index:
        states[entry.state] = states.get(entry.state, 0) + 1
    elapsed_s = look.time_s - earlier.time_s
    models = [
        # Of a model that was not read before, nothing is known of the interval.
        Counters(samples, earlier.models.get(key, samples), elapsed_s)
        for key, samples in look.models.items()
        if shows(key[0])
    ]

    def recently(family: Family) -> float:
        """Of these models; of each no less than 0, as counters begin anew with a load."""
        return sum(each.recently(family) for each in models)

    return {
        "models": len(index),
        "states": states,
        "failed": sum(entry.failed for entry in index),
        "executors": len(look.hosting.executors),
        "schedulers": len(look.hosting.schedulers),
        "pending": sum(each.total(metrics.PENDING) for each in models),
        "requests_per_s": per_second(recently(metrics.SUCCESS), elapsed_s),
        "errors_per_s": per_second(recently(metrics.FAILURE), elapsed_s),
        "latency_us": mean_durations(recently),
        "partial": look.partial,
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


def executors(look: Look, shows: Callable[[str], bool] = _all) -> dict[str, document.Executor]:
    """By name. shows: which models' instances and memory are looked at."""
    return {each.name: _executor(each, shows) for each in look.hosting.executors[:_MAX_EXECUTORS]}


def _executor(facts: pb.ExecutorFacts, shows: Callable[[str], bool]) -> document.Executor:
    hosted = [each for each in facts.hosted if shows(each.model)]
    return {
        "name": facts.name,
        "host": facts.host,
        "backends": list(facts.backends),
        "instances": sum(each.instances for each in hosted),
        "busy": sum(each.busy for each in hosted),
        "devices": [_device(each, facts, hosted) for each in facts.devices],
    }


def _device(
    device: pb.Device, facts: pb.ExecutorFacts, hosted: Sequence[pb.HostedModel]
) -> document.Device:
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
            for each in hosted[:_MAX_TENANTS]
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
    """The sections that say something of models, for a viewer who may see some alone. shows:
    whether it may see one.
    """

    def executor(found: document.Executor) -> dict[str, Any]:
        devices = [
            {name: value for name, value in device.items() if name not in _OF_ALL_TENANTS}
            for device in found["devices"]
        ]
        return {**found, "devices": devices}

    def scheduler(found: document.Scheduler) -> document.Scheduler:
        owned = [*filter(shows, found["owned"])]
        return {**found, "owned": owned, "models": len(owned)}

    return {
        "server": {**shared["server"], "problems": problems(look, shows)},
        "summary": _summary_of(look, earlier, shows),
        "slow_requests": [each for each in shared["slow_requests"] if shows(each["model"])],
        "executors": {name: executor(each) for name, each in executors(look, shows).items()},
        "schedulers": {name: scheduler(each) for name, each in shared["schedulers"].items()},
        "cache": None,
    }


def problems(look: Look, shows: Callable[[str], bool] = _all) -> list[str]:
    """What could not be asked of the mesh, or of the models that shows() is true of."""
    found = (each.text for each in look.problems if not each.model or shows(each.model))
    return [*dict.fromkeys(found)]


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
