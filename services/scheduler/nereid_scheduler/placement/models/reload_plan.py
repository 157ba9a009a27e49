"""Plan of a load: the steps after which a model is served as it was found in its repository."""

# layout: covered

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from nereid_scheduler.core.models.dependencies import is_ensemble
from nereid_scheduler.core.models.lifecycle import VersionState
from nereid_scheduler.core.models.revision import revision_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from nereid.pb import model_config_pb2 as config_pb
    from nereid_scheduler.core.models.found_model import FoundModel
    from nereid_scheduler.placement.models.catalogue import ServedVersion


@dataclass(frozen=True, slots=True)
class ReloadPlan:
    """Numbers of the versions to load, to update to other instance groups, and to unload."""

    load: tuple[int, ...] = ()
    update_instances: tuple[int, ...] = ()
    unload: tuple[int, ...] = ()


def plan_reload(current: Mapping[int, ServedVersion], found: FoundModel) -> ReloadPlan:
    """Return what must be done so that the versions that were found are in service."""
    load, update = [], []
    for number in found.versions:
        served = current.get(number)
        if served is None or not _is_unchanged(served, found):
            load.append(number)
        elif any(_same_instances(config, found.draft) for config in _configurations(served)):
            continue
        elif served.life.state is VersionState.READY and not is_ensemble(found.draft):
            update.append(number)
        else:
            load.append(number)
    unload = [
        number
        for number, served in current.items()
        if number not in found.versions and not served.life.unload_begun
    ]
    return ReloadPlan(tuple(load), tuple(update), tuple(unload))


def _same_instances(one: config_pb.ModelConfig, other: config_pb.ModelConfig) -> bool:
    """Return whether two drafts agree in the fields that can change while a version serves."""
    groups = list(one.instance_group) == list(other.instance_group)
    return groups and one.version_policy == other.version_policy


def _is_unchanged(served: ServedVersion, found: FoundModel) -> bool:
    if served.life.state not in (VersionState.READY, VersionState.LOADING):
        return False
    if served.path != found.version_path(served.number):
        return False
    now = revision_of(found.draft, found.file_digests[served.number])
    return any(revision_of(config, served.file_digest) == now for config in _configurations(served))


def _configurations(served: ServedVersion) -> Iterator[config_pb.ModelConfig]:
    """Yield both configurations: a client may send back, as an override, the one that it sees."""
    yield served.draft
    if served.shown is not None:
        yield served.shown
