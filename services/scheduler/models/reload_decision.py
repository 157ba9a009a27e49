"""What has to be done so that a model is served as it was found: the decision of every load.

Pure: versions in service and a model as it lies in its repository in; numbers of versions out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from nereid.services.scheduler.models.dependencies import is_ensemble
from nereid.services.scheduler.models.lifecycle import VersionState
from nereid.services.scheduler.repository.revision import revision_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nereid.pb import model_config_pb2 as config_pb
    from nereid.services.scheduler.models.catalogue import ServedVersion
    from nereid.services.scheduler.repository.repositories import FoundModel


@dataclass(frozen=True, slots=True)
class Change:
    """The versions to load, to give other instance groups, and to take out of service."""

    load: tuple[int, ...] = ()
    resize: tuple[int, ...] = ()
    unload: tuple[int, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.load or self.resize or self.unload)


def compare(current: Mapping[int, ServedVersion], found: FoundModel) -> Change:
    """The change from the versions that there are to those that were found."""
    load, resize = [], []
    for number in found.versions:
        served = current.get(number)
        if served is None or not _stays(served, found):
            load.append(number)
        elif _looks_alike(served.draft, found.draft):
            continue
        elif served.life.state is VersionState.READY and not is_ensemble(found.draft):
            resize.append(number)
        else:
            load.append(number)
    unload = [
        number
        for number, served in current.items()
        if number not in found.versions and not served.life.gone
    ]
    return Change(tuple(load), tuple(resize), tuple(unload))


def _looks_alike(one: config_pb.ModelConfig, other: config_pb.ModelConfig) -> bool:
    """Whether the two agree in what can be changed while a version serves."""
    groups = list(one.instance_group) == list(other.instance_group)
    return groups and one.version_policy == other.version_policy


def _stays(served: ServedVersion, found: FoundModel) -> bool:
    """Whether what was loaded, or is being loaded, is what was found."""
    if served.life.state not in (VersionState.READY, VersionState.LOADING):
        return False
    if served.path != found.version_path(served.number):
        return False
    then = revision_of(served.draft, served.files)
    return then == revision_of(found.draft, found.files[served.number])
