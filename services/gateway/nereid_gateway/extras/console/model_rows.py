"""Rows of the console's table, one for each version, with figures from the last two looks."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

from nereid.facts.explanation import explanation, statement_document
from nereid.facts.mesh_facts import MeshFacts, VersionFacts
from nereid.facts.reasons import BY_MODEL, HELD_REQUESTS, explain
from nereid.observability import metrics
from nereid.observability.samples import Samples
from nereid.pb import nereid_pb2 as pb
from nereid_gateway.extras.console.counters import Counters, mean_durations, per_second

if TYPE_CHECKING:
    from collections.abc import Container, Iterable
    from typing import Any

    from nereid.facts import document
    from nereid.facts.mesh_facts import ConfigFacts
    from nereid.facts.reasons import Statement
    from nereid_gateway.extras.console.loads import Key
    from nereid_gateway.extras.console.look import IndexEntry, Look
    from nereid_gateway.extras.console.queries import View

_NOTHING: Final = Samples(b"")
_NO_LOAD: Final = pb.VersionLoad.Minutes()
# Codes of statements about models that nobody wants to be served.
_WANTED: Final = frozenset({"unloaded", "never-loaded"})
_TARGETS: Final = {
    "target_us": metrics.TARGET,
    "held_us": metrics.TARGET_HELD,
    "batch_size": metrics.TARGET_SIZE,
    "delay_us": metrics.TARGET_DELAY,
    "execution_us": metrics.TARGET_EXECUTION,
    "reachable": metrics.TARGET_REACHABLE,
    "missed": metrics.TARGET_MISSED,
}


class _CachedRow(NamedTuple):
    row: document.Model
    entry: IndexEntry
    samples: Samples
    mesh: tuple[float | None, ...]
    owner: str
    config: ConfigFacts | None
    load: pb.VersionLoad | None
    # No counter had changed, so all rates are 0 and stay right until a counter changes.
    still: bool


class ModelRows:
    """Rows of one mesh. A row is made again only if its contents may have changed."""

    def __init__(self) -> None:
        self._cached_rows: dict[Key, _CachedRow] = {}

    def row(self, entry: IndexEntry, look: Look, earlier: Look, owner: str) -> document.Model:
        """Return the row of one version. earlier: the look before, or this look if it is the first.

        owner: the scheduler that has the version, or empty if there is only one scheduler.
        """
        mesh = look.mesh.total(metrics.EXECUTORS.name), look.mesh.total(metrics.HELD.name)
        samples = look.models.get(entry.key, _NOTHING)
        config = look.configs.get(entry.key)
        load = look.loads.now.get(entry.key)
        last = self._cached_rows.get(entry.key)
        same = last is not None and last.samples.same_as(samples)
        if (
            last is not None
            and same
            and last.still
            and (last.entry, last.mesh, last.owner) == (entry, mesh, owner)
            and last.config is config
            and last.load == load
            and entry.key not in look.ready
        ):
            return last.row
        row = _row(entry, samples, look, earlier)
        if owner:
            row["scheduler"] = owner
        self._cached_rows[entry.key] = _CachedRow(
            row, entry, samples, mesh, owner, config, load, same
        )
        return row

    def forget_others(self, shown: Container[Key]) -> None:
        """Forget all rows except those of the versions that are shown."""
        for key in [cached for cached in self._cached_rows if cached not in shown]:
            del self._cached_rows[key]


def _mesh_facts(
    look: Look, model: str, entries: Iterable[IndexEntry], names: Iterable[str] = ()
) -> MeshFacts:
    versions = tuple(entries)
    metrics_of = [look.models[entry.key] for entry in versions if entry.key in look.models]
    return MeshFacts(
        model,
        look.server_ready,
        tuple(version_facts(entry, look) for entry in versions),
        tuple(names),
        Samples.joined(look.mesh, *metrics_of),
    )


def explained(look: Look, view: View) -> dict[str, Any]:
    """Return what `nereid explain --json` prints about the model of a view."""
    entries = [entry for entry in look.index if entry.key.name == view.model]
    names = sorted({entry.key.name for entry in look.index if view.shows(entry.key.name)})
    facts = _mesh_facts(look, view.model, entries, names)
    statements = explain(facts)
    if not view.shows_all:
        statements = [statement for statement in statements if statement.code != HELD_REQUESTS]
    return explanation(facts, statements, 0.0)


def version_facts(entry: IndexEntry, look: Look) -> VersionFacts:
    """Return the facts of one version."""
    config = look.configs.get(entry.key)
    ready = look.ready.get(entry.key)
    if ready is None:
        samples = look.models.get(entry.key, _NOTHING)
        instances = samples.total(metrics.INSTANCES.name)
        of_steps = config is not None and config.batching == "ensemble"
        ready = entry.state == "READY" and (instances != 0 or of_steps)
    shown = config if entry.in_memory else None
    return VersionFacts(entry.key.version, entry.state, entry.reason, ready, shown)


def _row(entry: IndexEntry, samples: Samples, look: Look, earlier: Look) -> document.Model:
    load = look.loads.now.get(entry.key)
    recent = _NO_LOAD if load is None else load.last_5
    statements = [
        statement_document(_current(statement, recent))
        for statement in explain(_mesh_facts(look, entry.key.name, [entry]))
    ]
    row: document.Model = {
        "name": entry.key.name,
        "version": entry.key.version,
        "state": entry.state,
        "reason": entry.reason,
        "in_memory": entry.in_memory,
        "health": "out",
        "statements": statements,
    }
    if entry.in_memory and samples is not _NOTHING:
        before = earlier.models.get(entry.key, samples)
        _add_figures(row, Counters(samples, before, look.time_s - earlier.time_s))
        config = look.configs.get(entry.key)
        if config is not None:
            row["batches"]["max_batch_size"] = config.proto.max_batch_size
        if load is not None:
            row["recent"] = recent_document(load)
    row["health"] = _health(entry, row)
    return row


def _current(statement: Statement, recent: pb.VersionLoad.Minutes) -> Statement:
    """Return the statement as of now: past failures and wanted unloads are no problems."""
    if statement.code in _WANTED:
        return replace(statement, problem=False)
    lost = {"failures": recent.failures, "refused": recent.refused}.get(statement.code)
    if lost is None:
        return statement
    if not lost:
        return replace(statement, problem=False)
    total = recent.requests + recent.failures + recent.refused
    text = f"{statement.text}; {lost} of {total} in the last 5 minutes"
    return replace(statement, text=text)


def recent_document(load: pb.VersionLoad) -> document.Recent:
    """Return the figures of a version's last 30 minutes."""
    recent = load.last_30
    return {
        "seconds": round(recent.seconds),
        "requests": recent.requests,
        "errors": recent.failures,
        "refused": recent.refused,
        "requests_per_s": per_second(recent.requests, max(1.0, recent.seconds)),
        "p50_us": round(recent.p50_us),
        "p95_us": round(recent.p95_us),
        "p99_us": round(recent.p99_us),
    }


def _health(entry: IndexEntry, row: document.Model) -> str:
    if entry.failed:
        return "failed"
    if any(statement["problem"] for statement in row["statements"]):
        return "problem"
    if not entry.in_memory:
        return "out"
    return "busy" if row.get("instances", {}).get("busy") else "idle"


def _add_figures(row: document.Model, counted: Counters) -> None:
    error_responses = counted.rate(metrics.ERROR_RESPONSES)
    row["rates"] = {
        "requests": round(counted.rate(metrics.SUCCESS) - error_responses, 2),
        "errors": round(counted.rate(metrics.FAILURE) + error_responses, 2),
        "refused": counted.rate(metrics.REFUSED),
        "rows": counted.rate(metrics.INFERENCES),
        "executions": counted.rate(metrics.EXECUTIONS),
    }
    row["latency_us"] = mean_durations(counted.recently)
    row["batches"] = {
        "mean_rows": counted.mean_size(),
        "max_batch_size": 0,
        "sizes": counted.sizes(),
        "closed": counted.by_label(metrics.BATCHES_CLOSED, "reason"),
        "closed_recently": counted.recently_by(metrics.BATCHES_CLOSED, "reason"),
    }
    row["instances"] = {"free": 0, "busy": 0, **counted.by_label(metrics.INSTANCES, "state")}
    sequences = counted.by_label(metrics.SEQUENCES, "state")
    if sequences:
        row["sequences"] = sequences
    pending = counted.total(metrics.PENDING)
    row["queue"] = {
        "pending": pending,
        "waits_for": waits_for(row["instances"], sequences) if pending else "",
    }
    if counted.value(metrics.CACHE_HITS) is not None:
        row["cache"] = {
            "hits": counted.total(metrics.CACHE_HITS),
            "misses": counted.total(metrics.CACHE_MISSES),
        }
    row["memory_bytes"] = counted.by_label(metrics.MODEL_MEMORY, "device")
    row["totals"] = {
        "requests": counted.total(metrics.SUCCESS),
        "rows": counted.total(metrics.INFERENCES),
        "executions": counted.total(metrics.EXECUTIONS),
        "refused": counted.total(metrics.REFUSED),
        "retries": counted.total(metrics.RETRIES),
    }
    row["failures"] = {
        **counted.by_label(metrics.FAILURE, "reason"),
        BY_MODEL: counted.total(metrics.ERROR_RESPONSES),
    }
    row["load_seconds"] = counted.value(metrics.LOAD_DURATION) or 0.0
    if counted.value(metrics.TARGET) is not None:
        row["target"] = {name: counted.value(family) or 0.0 for name, family in _TARGETS.items()}


def waits_for(instances: dict[str, int], sequences: dict[str, int]) -> str:
    """Return a text that says what the pending requests of a version wait for."""
    free, busy = instances.get("free", 0), instances.get("busy", 0)
    backlog = sequences.get("backlog", 0)
    if not free + busy:
        return "an instance: none is ready"
    if not free:
        return f"an instance: all {busy} are busy" if busy > 1 else "an instance: the one is busy"
    if backlog:
        return f"a slot: {backlog} sequences wait for others to end"
    return (
        f"more requests, the queue delay, or a rate limiter's resources: {free} instances are free"
    )
