"""Sections of the console's document, except `models`."""

from __future__ import annotations

from heapq import nlargest
from typing import TYPE_CHECKING, Any, Final

from nereid.model_config.conditions import read_conditions
from nereid.model_config.render import message_json
from nereid.observability import metrics
from nereid.pb import nereid_pb2 as pb
from nereid.timeline.records import PROBLEMS
from nereid_gateway.extras.console.counters import Counters, mean_durations, per_second

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from nereid.facts import document
    from nereid.pb.model_config_pb2 import ModelConfig
    from nereid_gateway.extras.console.look import Look
    from nereid_gateway.extras.console.queries import View

_MAX_EXECUTORS: Final = 500
_MAX_TENANTS: Final = 200


# Figures of a device for all models together. They cannot be divided by model.
_OF_ALL_TENANTS: Final = frozenset({"memory_used_bytes", "utilization", "power_watts"})


def _all(_name: str) -> bool:
    return True


def summary(look: Look, earlier: Look) -> document.Summary:
    """Return the summary of the mesh. earlier: the look before, or this look if it is the first."""
    waiting = look.mesh.by_label(metrics.WAITING.name, "device")
    own = Counters(look.own, earlier.own, look.time_s - earlier.time_s)
    return {
        **_summary_of(look, _all),
        "pending": int(sum(waiting.values())),
        "held": int(look.mesh.total(metrics.HELD.name) or 0),
        "waiting": {device: int(count) for device, count in waiting.items()},
        "http": own.rates_by(metrics.HTTP_RESPONSES, "status"),
        "grpc": own.rates_by(metrics.GRPC_RESPONSES, "status"),
        "http_connections": own.total(metrics.GATEWAY_CONNECTIONS),
        "grpc_connections": own.total(metrics.GATEWAY_GRPC_CONNECTIONS),
    }


def _summary_of(look: Look, shows: Callable[[str], bool]) -> document.Summary:
    index = [entry for entry in look.index if shows(entry.key.name)]
    states: dict[str, int] = {}
    for entry in index:
        states[entry.state] = states.get(entry.state, 0) + 1
    loads = look.loads
    recently = loads.growth(shows)
    return {
        "models": len(index),
        "states": states,
        "failed": sum(entry.failed for entry in index),
        "executors": len(look.hosting.executors),
        "schedulers": len(look.hosting.schedulers),
        "pending": sum(load.pending for key, load in loads.now.items() if shows(key.name)),
        "requests_per_s": per_second(recently(metrics.SUCCESS), loads.elapsed_s),
        "errors_per_s": per_second(recently(metrics.FAILURE), loads.elapsed_s),
        "latency_us": mean_durations(recently),
        "partial": False,
    }


def cache(look: Look, earlier: Look) -> document.Cache | None:
    """Return the figures of the response cache, or None if the mesh has no cache."""
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
    """Return the facts of each scheduler, keyed by name."""
    return {
        scheduler.name: {
            "name": scheduler.name,
            "reachable": scheduler.reachable,
            "models": scheduler.models,
            "owned": list(scheduler.owned),
            "gateways": scheduler.gateways,
            "epoch": scheduler.epoch,
            "host_name": scheduler.host_name,
        }
        for scheduler in look.hosting.schedulers
    }


def owners(look: Look) -> dict[str, str]:
    """Return each model's scheduler, keyed by the model's name. It is empty for one scheduler."""
    if len(look.hosting.schedulers) < 2:
        return {}
    return {
        model: scheduler.name for scheduler in look.hosting.schedulers for model in scheduler.owned
    }


def executors(look: Look, shows: Callable[[str], bool] = _all) -> dict[str, document.Executor]:
    """Return the facts of at most 500 executors, keyed by name. shows: selects their models."""
    return {
        facts.name: _executor(facts, title, shows)
        for facts, title in _titled(look.hosting.executors[:_MAX_EXECUTORS])
    }


def _titled(executors: Sequence[pb.ExecutorFacts]) -> Iterator[tuple[pb.ExecutorFacts, str]]:
    """Yield each executor with its title: the operator's name for it, or its host's.

    An executor that nobody has named is called HOST-PROCESS-RANDOM.
    """
    titles = [_title(facts) for facts in executors]
    for facts, title in zip(executors, titles, strict=True):
        if title != facts.name and titles.count(title) > 1:
            process = facts.name.removeprefix(f"{title}-").partition("-")[0]
            yield facts, f"{title}, process {process}"
        else:
            yield facts, title


def _title(facts: pb.ExecutorFacts) -> str:
    host_name = facts.host_name
    return host_name if host_name and facts.name.startswith(f"{host_name}-") else facts.name


def _executor(
    facts: pb.ExecutorFacts, title: str, shows: Callable[[str], bool]
) -> document.Executor:
    hosted = [version for version in facts.hosted if shows(version.model)]
    return {
        "name": facts.name,
        "title": title,
        "host_name": facts.host_name,
        "host": facts.host,
        "backends": list(facts.backends),
        "instances": sum(version.instances for version in hosted),
        "busy": sum(version.busy for version in hosted),
        "devices": [_device(device, facts, hosted) for device in facts.devices],
    }


def _device(
    device: pb.Device, facts: pb.ExecutorFacts, hosted: Sequence[pb.HostedModel]
) -> document.Device:
    is_gpu = device.kind == pb.Device.GPU
    # Executors report the memory that a load has taken under these names.
    name = f"gpu{device.id}" if is_gpu else "cpu"
    # A model without measured memory is shown on the CPU.
    tenants = (
        tenant
        for tenant in hosted
        if tenant.memory_bytes.get(name) or not (is_gpu or any(tenant.memory_bytes.values()))
    )
    shown: document.Device = {
        "name": name,
        "memory_total_bytes": device.memory_bytes,
        "tenants": [
            {
                "model": tenant.model,
                "version": str(tenant.version),
                "instances": tenant.instances,
                "memory_bytes": tenant.memory_bytes.get(name, 0),
            }
            for tenant in nlargest(
                _MAX_TENANTS, tenants, key=lambda tenant: tenant.memory_bytes.get(name, 0)
            )
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


def limited(shared: Mapping[str, Any], look: Look, shows: Callable[[str], bool]) -> dict[str, Any]:
    """Return the sections that concern models, with only the models that shows() accepts."""

    def executor(whole: document.Executor) -> dict[str, Any]:
        devices = [
            {name: value for name, value in device.items() if name not in _OF_ALL_TENANTS}
            for device in whole["devices"]
        ]
        return {**whole, "devices": devices}

    def scheduler(whole: document.Scheduler) -> document.Scheduler:
        owned = [*filter(shows, whole["owned"])]
        return {**whole, "owned": owned, "models": len(owned)}

    return {
        "server": {**shared["server"], "problems": problems(look, shows)},
        "summary": _summary_of(look, shows),
        "slow_requests": [
            request for request in shared["slow_requests"] if shows(request["model"])
        ],
        "executors": {name: executor(whole) for name, whole in executors(look, shows).items()},
        "schedulers": {name: scheduler(whole) for name, whole in shared["schedulers"].items()},
        "cache": None,
    }


def problems(look: Look, shows: Callable[[str], bool] = _all) -> list[str]:
    """Return the failed calls of a look, except those for models that shows() rejects."""
    texts = (problem.text for problem in look.problems if not problem.model or shows(problem.model))
    return [*dict.fromkeys(texts)]


def batches(look: Look, view: View) -> dict[str, list[document.Batch]]:
    """Return the batches of the view's model that instances execute now, by version."""
    by_version: dict[str, list[document.Batch]] = {}
    for facts in look.hosting.batches:
        version = str(facts.version)
        if facts.model == view.model and view.version in ("", version):
            batch: document.Batch = {
                "time_s": round(look.time_s - facts.age_us / 1e6, 3),
                "duration_us": facts.age_us,
                "instance": facts.instance,
                "reason": facts.reason,
                "rows": facts.rows,
                "members": [
                    {
                        "request_id": member.request_id,
                        "rows": member.rows,
                        "queue_us": member.queue_us,
                    }
                    for member in facts.members
                ],
            }
            by_version.setdefault(version, []).append(batch)
    return by_version


def minutes(look: Look, view: View) -> dict[str, list[document.Minute]]:
    """Return the last 30 minutes of each version of the view's model."""
    return {
        key.version: [
            {
                "age": minute.age,
                "requests": minute.requests,
                "errors": minute.failures,
                "p50_us": round(minute.p50_us),
                "p99_us": round(minute.p99_us),
            }
            for minute in load.minutes
        ]
        for key, load in look.loads.now.items()
        if key.name == view.model and view.version in ("", key.version)
    }


def steps(look: Look, view: View) -> dict[str, list[document.Step]]:
    """Return the steps of each version of the view's model that is an ensemble."""
    by_version: dict[str, list[document.Step]] = {}
    for key, config in look.configs.items():
        is_shown = key.name == view.model and view.version in ("", key.version)
        if is_shown and config.proto.ensemble_scheduling.step:
            load = look.loads.now.get(key)
            recent = {} if load is None else {step.index: step for step in load.steps}
            by_version[key.version] = _steps(config.proto, recent)
    return by_version


def _steps(config: ModelConfig, recent: Mapping[int, pb.StepLoad]) -> list[document.Step]:
    ensemble, conditions = config.ensemble_scheduling, read_conditions(config)
    producers: dict[str, set[int]] = {}
    for index, step in enumerate(ensemble.step):
        for tensor in step.output_map.values():
            producers.setdefault(tensor, set()).add(index)
    steps: list[document.Step] = []
    for index, step in enumerate(ensemble.step):
        condition = conditions.get(index)
        read = [*step.input_map.values(), *([condition.tensor] if condition else [])]
        sources = {source for tensor in read for source in producers.get(tensor, ())}
        shown: document.Step = {
            "model": step.model_name,
            "version": str(step.model_version) if step.model_version > 0 else "",
            "after": sorted(sources),
        }
        if condition is not None:
            shown["condition"] = str(condition)
        if (load := recent.get(index)) is not None:
            shown["requests"] = load.last_30.requests
            shown["errors"] = load.last_30.failures
            shown["mean_us"] = round(load.mean_us)
            shown["p50_us"] = round(load.last_30.p50_us)
            shown["p99_us"] = round(load.last_30.p99_us)
        steps.append(shown)
    return steps


def events(look: Look, view: View) -> dict[str, document.Event]:
    """Return the last events that the view's viewer may see, keyed by scheduler and number."""
    seen = [
        event
        for event in look.events
        if view.shows_all or (event.model and view.shows(event.model))
    ]
    return {f"{event.scheduler} {event.number}": _event(event) for event in seen[-view.events :]}


def _event(event: pb.MeshEvent) -> document.Event:
    shown: document.Event = {
        "time_s": round(event.time_s, 3),
        "scheduler": event.scheduler,
        "what": event.what,
        "subject": event.subject,
        "problem": event.what in PROBLEMS,
    }
    if event.duration_us:
        shown["duration_us"] = event.duration_us
    if event.detail:
        shown["detail"] = event.detail
    if event.model:
        shown["model"] = event.model
    if event.cause:
        shown["cause"] = event.cause
    if event.principal:
        shown["principal"] = event.principal
    return shown


def configuration(declared: ModelConfig | None, effective: ModelConfig) -> document.Configuration:
    """Return the declared and the effective configuration of a version, and how they differ."""
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
    differences: list[document.Difference] = []
    for name in {**declared, **effective}:
        before, after = declared.get(name), effective.get(name)
        if before == after:
            continue
        if isinstance(before, dict) and isinstance(after, dict):
            differences += _differences(f"{prefix}{name}.", before, after)
            continue
        difference: document.Difference = {"field": prefix + name}
        if before is not None:
            difference["declared"] = before
        if after is not None:
            difference["effective"] = after
        differences.append(difference)
    return differences
