"""Merges the responses of all schedulers of a mesh to a control call into one response."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from nereid.observability import metrics
from nereid.observability.metrics_page import merge_pages
from nereid.pb import kserve_pb2
from nereid.pb import nereid_pb2 as nereid_pb
from nereid_scheduler.core.models.lifecycle import VersionState

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

# While a model moves, two schedulers show its versions. The state with the larger rank counts.
_RANKS: Final = {
    state.value: rank
    for rank, state in enumerate(
        (
            VersionState.UNKNOWN,
            VersionState.UNAVAILABLE,
            VersionState.UNLOADING,
            VersionState.LOADING,
            VersionState.READY,
        )
    )
}

_SAME: Final = {metrics.LOAD_DURATION, metrics.TRAFFIC_WEIGHT, metrics.ROLLOUT_PERCENT}
# If a model has moved, the series of two schedulers count different requests: sum them.
_SUMMED: Final = frozenset(
    family.name
    for family in metrics.declared_families()
    if family in {metrics.HELD, metrics.LINKS, metrics.WAITING}
    or ("model" in family.labels and family not in _SAME)
)
# Start of a line of the page. A label has no line end, so it cannot contain this text.
_LINK_PENDING: Final = f"\n{metrics.LINK_PENDING.name}{{".encode()


def merge_indexes(
    indexes: Sequence[kserve_pb2.RepositoryIndexResponse],
    silent: Mapping[str, Iterable[str]],
    *,
    ready_only: bool,
) -> kserve_pb2.RepositoryIndexResponse:
    """Return each model once, as shown by the scheduler that has come furthest with it.

    silent: maps a scheduler that did not respond to the models that it has.
    """
    shown: dict[str, list[kserve_pb2.RepositoryIndexResponse.ModelIndex]] = {}
    for index in indexes:
        by_name: dict[str, list[kserve_pb2.RepositoryIndexResponse.ModelIndex]] = {}
        for entry in index.models:
            by_name.setdefault(entry.name, []).append(entry)
        for name, entries in by_name.items():
            if name not in shown or _rank(entries) > _rank(shown[name]):
                shown[name] = entries
    if not ready_only:
        for scheduler, names in silent.items():
            for name in names:
                if name not in shown or _rank(shown[name]) < 0:
                    reason = f"its scheduler '{scheduler}' does not respond"
                    missing = kserve_pb2.RepositoryIndexResponse.ModelIndex(
                        name=name, state=VersionState.UNAVAILABLE.value, reason=reason
                    )
                    shown[name] = [missing]
    response = kserve_pb2.RepositoryIndexResponse()
    for name in sorted(shown):
        response.models.extend(shown[name])
    return response


def _rank(entries: Iterable[kserve_pb2.RepositoryIndexResponse.ModelIndex]) -> int:
    return max(_RANKS.get(entry.state, -1) for entry in entries)


def merge_statistics(
    responses: Iterable[kserve_pb2.ModelStatisticsResponse],
) -> kserve_pb2.ModelStatisticsResponse:
    """Return the statistics of all models. While a model moves, the first response counts."""
    merged: dict[tuple[str, str], kserve_pb2.ModelStatistics] = {}
    for response in responses:
        for model in response.model_stats:
            merged.setdefault((model.name, model.version), model)
    return kserve_pb2.ModelStatisticsResponse(model_stats=merged.values())


def merge_metrics(pages: Mapping[str, bytes]) -> bytes:
    """Merge the metrics pages of schedulers. The first page is this scheduler's own.

    The series in _SUMMED are summed. Equal other series come from the first page. Series of links
    get a label with the scheduler, since each scheduler numbers its own links.
    """
    return merge_pages((_labelled(page, name) for name, page in pages.items()), _SUMMED)


def merge_facts(
    responses: Iterable[nereid_pb.FactsResponse], silent: Iterable[str]
) -> nereid_pb.FactsResponse:
    """Merge facts. Every response has all executors; join the models that an executor hosts."""
    merged = nereid_pb.FactsResponse()
    executors: dict[str, nereid_pb.ExecutorFacts] = {}
    for response in responses:
        merged.schedulers.extend(response.schedulers)
        merged.configs.extend(response.configs)
        merged.batches.extend(response.batches)
        merged.loads.extend(response.loads)
        merged.events.extend(response.events)
        for executor in response.executors:
            known = executors.setdefault(executor.name, executor)
            if known is not executor:
                known.hosted.extend(executor.hosted)
    merged.executors.extend(executors[name] for name in sorted(executors))
    merged.schedulers.extend(nereid_pb.SchedulerFacts(name=name) for name in sorted(silent))
    return merged


def _labelled(page: bytes, scheduler: str) -> bytes:
    label = f'scheduler="{scheduler}",'.encode()
    return page.replace(_LINK_PENDING, _LINK_PENDING + label)
