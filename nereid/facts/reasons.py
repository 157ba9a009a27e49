"""Statements about one model, in plain words and with figures, derived from facts of a mesh."""

from __future__ import annotations

from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final

from nereid.model_config.batching_fields import MAX_BATCH_TOKENS
from nereid.model_config.conditions import read_conditions, step_names
from nereid.model_config.remedies import remedy_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nereid.facts.mesh_facts import ConfigFacts, MeshFacts, VersionFacts

_BATCHING_CODES: Final = frozenset(
    {
        "no-batching",
        "no-dynamic-batching",
        "dynamic-batching-of-one",
        "ensemble-batching",
        "variable-shapes",
        "batches-by-size",
        "tokens-decide",
        "target-without-effect",
        "target-decides",
    }
)
# The number of requests of this statement covers all models.
# Beside the reasons of nv_inference_request_failure.
BY_MODEL: Final = "MODEL"
_PROBLEMS: Final = frozenset({"BACKEND", "OTHER", BY_MODEL})
_TRAFFIC_WEIGHT: Final = "nereid_model_traffic_weight"
HELD_REQUESTS: Final = "held-requests"
# A closing reason gets a statement if it closed at least this share of the batches.
_NOTABLE_SHARE: Final = 0.25
# Below this many rows per execution, batching has hardly any effect.
_BARELY_BATCHED: Final = 1.5
_BY_REASON: Final = {
    "full": "had max_batch_size rows or as many as fit",
    "preferred": "had a preferred_batch_size",
    "tokens": "had max_batch_tokens padded tokens, or as many as fit",
    "length": "left requests behind whose padding costs more than it saves",
    "shape": "ended at a request of another shape",
    "delay": "had waited for max_queue_delay_microseconds, or as a target_p99_us has it",
    "immediate": "went to an instance that was free, with all that waited",
    "shared": "had their instance's fair share of the open requests",
    "cost": "had the number of requests that costs least for each on this CPU, or is being tried",
    "single": "had one request, as without dynamic_batching",
}


@dataclass(frozen=True)
class Statement:
    """One statement with its figures. code is a stable name; the advice may be empty.

    problem: true if requests are not served as they should be.
    """

    code: str
    text: str
    problem: bool = False
    advice: str = ""
    version: str = ""
    figures: dict[str, Any] = field(default_factory=dict)


def explain(facts: MeshFacts) -> list[Statement]:
    """Return all statements: first about the model as a whole, then about each version."""
    statements = [*_of_mesh(facts), *_shadow(facts), *_traffic_warnings(facts)]
    for version in facts.versions:
        statements += _readiness(facts, version)
        if version.in_memory:
            statements += _traffic(facts, version)
            statements += _instances(facts, version)
            statements += _sources(version)
            statements += _batching(facts, version)
            statements += _skipped_steps(facts, version)
            statements += _target(facts, version)
            statements += _queue(facts, version)
            statements += _outcomes(facts, version)
    return statements


def _labels(facts: MeshFacts, version: VersionFacts) -> dict[str, str]:
    return {"model": facts.model, "version": version.number}


def _of_mesh(facts: MeshFacts) -> Iterator[Statement]:
    if not facts.versions:
        near = get_close_matches(facts.model, facts.names, n=1)
        yield Statement(
            "unknown-model",
            f"no repository of this mesh has a model '{facts.model}'",
            problem=True,
            advice=f"did you mean '{near[0]}'?" if near else "the index lists what there is",
            figures={"models": len(facts.names)},
        )
    if facts.metrics is None:
        yield Statement(
            "no-metrics",
            f"the metrics page cannot be read: {facts.metrics_error}",
            advice="give it by --metrics-url: without it less can be said",
        )
    executors = facts.gauge("nereid_executors")
    if executors == 0:
        yield Statement(
            "no-executor",
            "no executor has joined the mesh: no model can be executed",
            problem=True,
            advice="start an executor with the scheduler's --scheduler-address, and look at its"
            " log",
            figures={"executors": 0},
        )
    held = facts.gauge("nereid_held_requests")
    if held:
        yield Statement(
            HELD_REQUESTS,
            f"{held:.0f} requests (of all models) wait for a model's first load",
            figures={"held_requests": held},
        )


def _readiness(facts: MeshFacts, version: VersionFacts) -> Iterator[Statement]:
    executors = facts.gauge("nereid_executors")
    figures: dict[str, Any] = {"state": version.state, "reason": version.reason}
    which = f"version {version.number}" if version.number else "the model"
    because = f": {version.reason}" if version.reason else ""
    if version.state == "READY" and version.ready:
        yield from _ready(facts, version) if version.in_memory else _ready_on_demand(version)
        return
    problem, code, advice = True, version.state.lower() or "never-loaded", ""
    text = f"{which} is {version.state}{because}"
    match version.state:
        case "":
            text = f"{which} was never loaded"
            advice = f"POST /v2/repository/models/{facts.model}/load loads it"
        case "UNAVAILABLE" if version.reason == "unloaded":
            code = "unloaded"
            advice = f"POST /v2/repository/models/{facts.model}/load loads it again"
        case "UNAVAILABLE":
            advice = remedy_for(version.reason) or (
                "the reason is the load's own; `nereid check` finds those that lie in the"
                " configuration or the files before a load does"
            )
        case "LOADING" if executors == 0:
            text += ": it waits for an executor"
        case "LOADING":
            advice = "its requests wait; the executors' logs say how far they are"
        case "READY":
            ready = facts.gauge("nereid_instances", **_labels(facts, version))
            figures["instances"] = ready
            code = "not-ready"
            if ready:
                text = (
                    f"{which} is loaded, with {ready:.0f} instances, but reports itself not ready"
                )
                advice = "its own is_ready() says so, or does not respond in time"
    yield Statement(code, text, problem, advice, version.number, figures)


def _shadow(facts: MeshFacts) -> Iterator[Statement]:
    if facts.shadow_problem:
        yield Statement(
            "shadow-problem",
            f"its shadow: {facts.shadow_problem}",
            advice=f"load the target, or: nereid shadow clear {facts.model}",
        )
    compared = facts.gauge("nereid_shadow_compared_total", model=facts.model)
    if compared is None or facts.metrics is None:
        return
    differences, dropped = (
        facts.metrics.by_label(f"nereid_shadow_{name}_total", label, model=facts.model)
        for name, label in (("differences", "kind"), ("not_compared", "reason"))
    )
    kinds = ", ".join(f"{count:.0f} of {kind}" for kind, count in sorted(differences.items()))
    yield Statement(
        "shadow",
        f"its shadow was compared for {compared:.0f} requests, with"
        f" {f'differences: {kinds}' if kinds else 'no difference'}",
        figures={
            "compared": compared,
            "differences": sum(differences.values()),
            "not_compared": sum(dropped.values()),
        },
    )


def _traffic_warnings(facts: MeshFacts) -> Iterator[Statement]:
    if facts.traffic_warnings is None:
        yield from _missing_versions(facts)
        return
    for warning in facts.traffic_warnings:
        yield Statement(
            "traffic-warning",
            f"traffic: {warning}",
            problem=True,
            advice=f"change the weights: nereid traffic {facts.model} VERSION=WEIGHT",
        )


def _missing_versions(facts: MeshFacts) -> Iterator[Statement]:
    if facts.metrics is None or not facts.versions:
        return
    weights = facts.metrics.by_label(_TRAFFIC_WEIGHT, "version", model=facts.model)
    known = {version.number for version in facts.versions}
    for number, weight in sorted(weights.items()):
        if weight and number not in known:
            yield Statement(
                "traffic-without-version",
                f"version {number} has weight {weight:.0f}, and no repository has it or its"
                " version_policy leaves it out: the others get its requests",
                problem=True,
                advice=f"load it, or set weights: nereid traffic {facts.model} VERSION=WEIGHT",
                version=number,
                figures={"weight": weight},
            )


def _traffic(facts: MeshFacts, version: VersionFacts) -> Iterator[Statement]:
    weight = facts.gauge(_TRAFFIC_WEIGHT, **_labels(facts, version))
    if weight is None or facts.metrics is None:
        return
    total = sum(facts.metrics.by_label(_TRAFFIC_WEIGHT, "version", model=facts.model).values())
    of_total = f" of {total:.0f}" if total != weight else ""
    yield Statement(
        "traffic",
        f"version {version.number} has weight {weight:.0f}{of_total} among requests that name no"
        " version",
        version=version.number,
        figures={"weight": weight, "total": total},
    )


def _ready_on_demand(version: VersionFacts) -> Iterator[Statement]:
    yield Statement(
        "not-in-memory",
        f"version {version.number} is ready, but {version.reason}",
        advice='the parameter lazy_loading "false", or --load-model, has it loaded for good',
        version=version.number,
        figures={"state": version.state},
    )


def _ready(facts: MeshFacts, version: VersionFacts) -> Iterator[Statement]:
    text = f"version {version.number} is ready"
    duration_s = facts.gauge("nv_model_load_duration_secs", **_labels(facts, version))
    figures: dict[str, Any] = {"state": version.state}
    if duration_s is not None:
        figures["load_seconds"] = duration_s
        text += f"; its load took {duration_s:.2f} s"
    yield Statement("ready", text, version=version.number, figures=figures)
    if version.reason:
        yield Statement(
            "ready-with-reason",
            f"version {version.number}: {version.reason}",
            problem=True,
            version=version.number,
        )


def _instances(facts: MeshFacts, version: VersionFacts) -> Iterator[Statement]:
    by_state = {}
    if facts.metrics is not None:
        by_state = facts.metrics.by_label("nereid_instances", "state", **_labels(facts, version))
    config = version.config
    if not by_state or (config is not None and config.batching == "ensemble"):
        return
    ready, busy = sum(by_state.values()), by_state.get("busy", 0.0)
    figures: dict[str, Any] = {"instances": ready, "busy": busy}
    executors = facts.gauge("nereid_executors")
    if executors is not None:
        figures["executors"] = executors
    text = f"{ready:.0f} instances, {busy:.0f} of them busy, on {executors or 0:.0f} executors"
    gpus = [*facts.counts("nv_inference_count", "gpu_uuid", **_labels(facts, version))]
    if gpus:
        figures["gpus"] = gpus
        text += f", on {', '.join(gpus)}"
    yield Statement(
        "instances",
        text,
        problem=not ready,
        advice="" if ready else "requests wait for --no-executor-timeout-secs, then fail",
        version=version.number,
        figures=figures,
    )


def _batching(facts: MeshFacts, version: VersionFacts) -> Iterator[Statement]:
    config = version.config
    if config is None:
        return
    for finding in config.findings:
        if finding.code in _BATCHING_CODES:
            yield Statement(
                finding.code, finding.message, advice=finding.hint, version=version.number
            )
    if config.batching == "ensemble":
        return
    yield from _sizes(facts, version, config)


def _sizes(facts: MeshFacts, version: VersionFacts, config: ConfigFacts) -> Iterator[Statement]:
    labels = _labels(facts, version)
    if facts.metrics is None:
        # Without a metrics page, use the statistics, which always count since the load.
        statistics = version.statistics or {}
        rows = float(statistics.get("inference_count", 0))
        executions = float(statistics.get("execution_count", 0))
    else:
        # Failed executions had rows as well, which nv_inference_count leaves out.
        rows = facts.count("nereid_batch_size_sum", **labels)
        executions = facts.count("nereid_batch_size_count", **labels)
    if executions <= 0:
        yield Statement(
            "no-executions",
            "it has executed nothing" + (" meanwhile" if facts.earlier is not None else ""),
            version=version.number,
        )
        return
    mean = rows / executions
    figures: dict[str, Any] = {"rows": rows, "executions": executions, "mean_rows": mean}
    most = config.proto.max_batch_size
    batches = config.batching != "none"
    text = f"executions had {mean:.2f} rows on average ({rows:.0f} rows in {executions:.0f})"
    if most > 1:
        text += f"; max_batch_size allows {most}"
    if MAX_BATCH_TOKENS in config.proto.parameters:
        tokens = config.proto.parameters[MAX_BATCH_TOKENS].string_value
        text += f", and {MAX_BATCH_TOKENS} allows {tokens} padded tokens"
    yield Statement("batch-size", text, version=version.number, figures=figures)
    if not batches:
        return
    closed = facts.counts("nereid_batches_closed_total", "reason", **labels)
    total = sum(closed.values())
    for reason, count in sorted(closed.items(), key=lambda item: -item[1]):
        if total and count / total >= _NOTABLE_SHARE:
            yield _closed(version, config, reason, count / total, mean)


def _sources(version: VersionFacts) -> Iterator[Statement]:
    """Yield where the fields of a configuration of several files come from."""
    sources = {} if version.config is None else version.config.sources
    if sources:
        by_file: dict[str, list[str]] = {}
        for path, source in sources.items():
            file, _, line = source.rpartition(":")
            by_file.setdefault(file, []).append(f"{path} (line {line})")
        text = "; ".join(f"{file} says {', '.join(paths)}" for file, paths in by_file.items())
        yield Statement("config-sources", text, version=version.number, figures=sources)


def _skipped_steps(facts: MeshFacts, version: VersionFacts) -> Iterator[Statement]:
    """Yield how often the steps of an ensemble with conditions were skipped."""
    skipped = facts.counts("nereid_ensemble_steps_skipped_total", "step", **_labels(facts, version))
    if version.config is None or not skipped:
        return
    proto = version.config.proto
    names, conditions = step_names(proto), read_conditions(proto)
    texts = {names[index]: str(condition) for index, condition in conditions.items()}
    for step, count in skipped.items():
        reason = f"its condition is '{texts[step]}'" if step in texts else "it needs a skipped one"
        yield Statement(
            "step-skipped",
            f"step '{step}' was skipped {count:.0f} times: {reason}",
            version=version.number,
            figures={"step": step, "skipped": count},
        )


def _closed(
    version: VersionFacts,
    config: ConfigFacts,
    reason: str,
    share: float,
    mean: float,
) -> Statement:
    problem, advice = False, ""
    delay_us = config.proto.dynamic_batching.max_queue_delay_microseconds
    barely = mean < _BARELY_BATCHED
    match reason:
        case "shape":
            problem = barely
            advice = "the parameter padding, or allow_ragged_batch, has them share batches"
        case "immediate" if barely:
            advice = (
                "instances are free when requests come, so nothing waits: that is the lowest"
                " latency. Under more load batches grow by themselves; a"
                " max_queue_delay_microseconds trades latency for larger ones"
            )
        case "delay" if barely and delay_us:
            advice = (
                f"too few requests come within {delay_us} us: a longer delay would wait for more,"
                " a shorter one would waste less time"
            )
    return Statement(
        f"closed-{reason}",
        f"{share:.0%} of the batches {_BY_REASON.get(reason, reason)}",
        problem,
        advice,
        version.number,
        {"share": share},
    )


def _target(facts: MeshFacts, version: VersionFacts) -> Iterator[Statement]:
    labels = _labels(facts, version)
    target_us = facts.gauge("nereid_target_p99_us", **labels)
    if not target_us:
        return
    gauges = {
        name: facts.gauge(f"nereid_target_{name}", **labels) or 0.0
        for name in ("held_us", "batch_size", "delay_us", "execution_us")
    }
    missed = facts.count("nereid_target_missed_total", **labels)
    served = facts.count("nv_inference_request_success", **labels)
    figures = {"target_us": target_us, **gauges, "missed": missed, "served": served}
    target = f"target_p99_us {target_us:.0f}"
    if not gauges["execution_us"]:
        yield Statement(
            "target",
            f"{target}: too few executions to decide by; each has one request, and none is refused",
            version=version.number,
            figures=figures,
        )
        return
    yield Statement(
        "target",
        f"{target}: batches have at most {gauges['batch_size']:.0f} rows, which take up to"
        f" {_ms(gauges['execution_us'])}, and wait {_ms(gauges['delay_us'])} for more while an"
        f" instance is free; requests that would take longer than {_ms(gauges['held_us'])} are"
        f" refused; {missed:.0f} of {served:.0f} took longer than the target",
        version=version.number,
        figures=figures,
    )
    if facts.gauge("nereid_target_reachable", **labels) == 0:
        yield Statement(
            "target-unreachable",
            f"{target} cannot be held: executing a single request takes longer;"
            f" {_ms(gauges['held_us'])} is held instead",
            problem=True,
            advice="raise target_p99_us, or make the model faster: more instances do not help",
            version=version.number,
            figures=figures,
        )


def _queue(facts: MeshFacts, version: VersionFacts) -> Iterator[Statement]:
    labels = _labels(facts, version)
    pending = facts.gauge("nv_inference_pending_request_count", **labels)
    busy = facts.gauge("nereid_instances", **labels, state="busy")
    free = facts.gauge("nereid_instances", **labels, state="free")
    if pending:
        text = f"{pending:.0f} requests wait"
        if free == 0 and busy:
            text += f" while all {busy:.0f} instances are busy"
        yield Statement(
            "pending",
            text,
            advice="more instances, or executors, would serve them sooner" if not free else "",
            version=version.number,
            figures={"pending": pending},
        )
    success = facts.count("nv_inference_request_success", **labels)
    if success > 0:
        queue_us = facts.count("nv_inference_queue_duration_us", **labels) / success
        whole_us = facts.count("nv_inference_request_duration_us", **labels) / success
        executions = facts.count("nv_inference_exec_count", **labels)
        infer_us = facts.count("nv_inference_compute_infer_duration_us", **labels) / success
        figures = {
            "queue_us": queue_us,
            "request_us": whole_us,
            "compute_infer_us": infer_us,
            "requests": success,
            "executions": executions,
        }
        yield Statement(
            "times",
            f"a request takes {_ms(whole_us)} on average: {_ms(queue_us)} in the queue,"
            f" {_ms(infer_us)} in the model ({success:.0f} requests)",
            advice=(
                "most of that is waiting: more instances, or larger batches, would shorten it"
                if queue_us > whole_us / 2 and queue_us > infer_us
                else ""
            ),
            version=version.number,
            figures=figures,
        )
    if facts.metrics is not None:
        backlog = facts.gauge("nereid_sequences", **labels, state="backlog")
        if backlog:
            live = facts.gauge("nereid_sequences", **labels, state="live") or 0.0
            yield Statement(
                "sequence-backlog",
                f"{backlog:.0f} of {live:.0f} sequences have no slot, and wait for others to end",
                advice="more instances, or a larger max_batch_size (direct) or"
                " max_candidate_sequences (oldest), give more slots",
                version=version.number,
                figures={"backlog": backlog, "live": live},
            )


def _outcomes(facts: MeshFacts, version: VersionFacts) -> Iterator[Statement]:
    labels = _labels(facts, version)
    refused = facts.count("nereid_requests_refused_total", **labels)
    if refused > 0:
        yield Statement(
            "refused",
            f"{refused:.0f} requests were refused: the queue was full, or too slow",
            problem=True,
            advice="max_queue_size (of the model, or --max-queue-size), admission_target_ms and"
            " target_p99_us say how many may wait; more instances serve more",
            version=version.number,
            figures={"refused": refused},
        )
    failures = facts.counts("nv_inference_request_failure", "reason", **labels)
    failures[BY_MODEL] = facts.count("nereid_error_responses_total", **labels)
    failed = {reason: count for reason, count in failures.items() if count > 0}
    if failed:
        shown = ", ".join(f"{count:.0f} {reason}" for reason, count in sorted(failed.items()))
        yield Statement(
            "failures",
            f"requests failed: {shown}",
            problem=not failed.keys().isdisjoint(_PROBLEMS),
            advice="as on Triton, nv_inference_request_failure does not count error responses"
            f" of the model itself ({BY_MODEL})"
            if BY_MODEL in failed
            else "",
            version=version.number,
            figures=dict(failed),
        )
    retries = facts.count("nereid_retries_total", **labels)
    if retries > 0:
        yield Statement(
            "retries",
            f"{retries:.0f} requests ran again because an instance was lost",
            advice="the executors' logs say why they, or Python models' workers, ended",
            version=version.number,
            figures={"retries": retries},
        )
    hits = facts.count("nv_cache_num_hits_per_model", **labels)
    misses = facts.count("nv_cache_num_misses_per_model", **labels)
    if hits + misses > 0:
        yield Statement(
            "cache",
            f"{hits / (hits + misses):.0%} of the lookups found a cached response; those requests"
            " are in no batch",
            version=version.number,
            figures={"hits": hits, "misses": misses},
        )


def _ms(us: float) -> str:
    return f"{us / 1000:.2f} ms"
