"""Merges the responses of all schedulers of a mesh to a control call into one.

It is pure and knows no connection: parsed responses in, one response out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from nereid.observability import metrics
from nereid.observability.metrics_page import merge_pages
from nereid.pb import kserve_pb2
from nereid.pb import nereid_pb2 as nereid_pb
from nereid_scheduler.core.models.lifecycle import VersionState

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

# While a model moves, two schedulers show its versions; the state that is further along counts.
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

# Both pages have the series of a model that has moved; they count different requests.
_SUMMED: Final = frozenset(
    family.name
    for family in metrics.declared_families()
    if family in {metrics.HELD, metrics.LINKS, metrics.WAITING}
    or ("model" in family.labels and family != metrics.LOAD_DURATION)
)
# Start of a line: no label has a line end.
_LINK_PENDING: Final = f"\n{metrics.LINK_PENDING.name}{{".encode()


def merge_indexes(
    indexes: Sequence[kserve_pb2.RepositoryIndexResponse],
    silent: Mapping[str, Iterable[str]],
    *,
    ready_only: bool,
) -> kserve_pb2.RepositoryIndexResponse:
    """Return each model as the scheduler shows it that is furthest along with it.

    `silent` has the models of schedulers that did not respond, by these schedulers' names.
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
    """Return the rank of a model's best version; -1 if it is only found in a repository."""
    return max(_RANKS.get(entry.state, -1) for entry in entries)


def merge_statistics(
    responses: Iterable[kserve_pb2.ModelStatisticsResponse],
) -> kserve_pb2.ModelStatisticsResponse:
    """Return the statistics of all models; the first ones count if a model is moving."""
    merged: dict[tuple[str, str], kserve_pb2.ModelStatistics] = {}
    for response in responses:
        for model in response.model_stats:
            merged.setdefault((model.name, model.version), model)
    return kserve_pb2.ModelStatisticsResponse(model_stats=merged.values())


def merge_metrics(pages: Mapping[str, bytes]) -> bytes:
    """Merge the metrics pages of schedulers, by name; the first one is this scheduler's own.

    Series of models and counts of links are summed where several schedulers have them. Pending
    requests of links get a label with the scheduler, since each scheduler numbers its links.
    Everything else, such as the cache's counters, is known equally to every scheduler; it is taken
    from the first page.
    """
    return merge_pages((_labelled(page, name) for name, page in pages.items()), _SUMMED)


def merge_facts(
    responses: Iterable[nereid_pb.FactsResponse], silent: Iterable[str]
) -> nereid_pb.FactsResponse:
    """Merge facts: executors as all schedulers know them, each with the models of all.

    `silent` names schedulers that did not respond.
    """
    merged = nereid_pb.FactsResponse()
    executors: dict[str, nereid_pb.ExecutorFacts] = {}
    for response in responses:
        merged.schedulers.extend(response.schedulers)
        merged.configs.extend(response.configs)
        merged.batches.extend(response.batches)
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
