"""One response to a control call of the responses of all schedulers of a mesh. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from nereid.observability import metrics
from nereid.observability.metrics_page import merge_pages
from nereid.pb import kserve_pb2
from nereid.pb import nereid_pb2 as nereid_pb
from nereid_scheduler.core.models.lifecycle import VersionState

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

# Of a model that moves, two schedulers show versions: the further its load, the better.
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

# Series of a model that has moved are in the pages of both; the counts are of different requests.
_SUMMED: Final = frozenset(
    family.name
    for family in metrics.declared_families()
    if family in {metrics.HELD, metrics.LINKS, metrics.WAITING}
    or ("model" in family.labels and family != metrics.LOAD_DURATION)
)
# Where a line begins: no label has a line end.
_LINK_PENDING: Final = f"\n{metrics.LINK_PENDING.name}{{".encode()


def merge_indexes(
    indexes: Sequence[kserve_pb2.RepositoryIndexResponse],
    silent: Mapping[str, Iterable[str]],
    *,
    ready_only: bool,
) -> kserve_pb2.RepositoryIndexResponse:
    """Each model as the scheduler shows it that has come furthest with it.

    silent: the models of schedulers that did not respond, by these schedulers' names.
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
    """-1: the model is only found in a repository."""
    return max(_RANKS.get(entry.state, -1) for entry in entries)


def merge_statistics(
    responses: Iterable[kserve_pb2.ModelStatisticsResponse],
) -> kserve_pb2.ModelStatisticsResponse:
    """The statistics of all models; of a model that moves, the first ones."""
    merged: dict[tuple[str, str], kserve_pb2.ModelStatistics] = {}
    for response in responses:
        for each in response.model_stats:
            merged.setdefault((each.name, each.version), each)
    return kserve_pb2.ModelStatisticsResponse(model_stats=merged.values())


def merge_metrics(pages: Mapping[str, bytes]) -> bytes:
    """One page of the pages of schedulers, by their names; the first one is this scheduler's own.

    Series of models and counts of links are summed where several have them. The pending requests of
    links are labelled, as links are numbered by each scheduler. Everything else, such as the
    cache's counters, is what every scheduler knows alike: the first page's counts.
    """
    return merge_pages((_labelled(page, name) for name, page in pages.items()), _SUMMED)


def merge_facts(
    responses: Iterable[nereid_pb.FactsResponse], silent: Iterable[str]
) -> nereid_pb.FactsResponse:
    """Executors as all schedulers know them, each with the models of all. silent: schedulers that
    did not respond.
    """
    merged = nereid_pb.FactsResponse()
    executors: dict[str, nereid_pb.ExecutorFacts] = {}
    for response in responses:
        merged.schedulers.extend(response.schedulers)
        merged.configs.extend(response.configs)
        merged.batches.extend(response.batches)
        for each in response.executors:
            known = executors.setdefault(each.name, each)
            if known is not each:
                known.hosted.extend(each.hosted)
    merged.executors.extend(executors[name] for name in sorted(executors))
    merged.schedulers.extend(nereid_pb.SchedulerFacts(name=name) for name in sorted(silent))
    return merged


def _labelled(page: bytes, scheduler: str) -> bytes:
    label = f'scheduler="{scheduler}",'.encode()
    return page.replace(_LINK_PENDING, _LINK_PENDING + label)
