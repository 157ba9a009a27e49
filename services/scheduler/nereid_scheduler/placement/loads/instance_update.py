"""Update of a version in service to new instance groups.

Surplus instances are unloaded once all missing ones are ready, each after its batch and after
sequences that cannot move. If a missing instance cannot be loaded, surplus instances stay.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from nereid_scheduler.core.instances.instance_places import Slot
    from nereid_scheduler.placement.executors.sessions import HostedVersion, Session
    from nereid_scheduler.placement.loads.instance_table import InstanceTable
    from nereid_scheduler.placement.models.catalogue import ServedVersion

_CAUSE = "it is one too many"


class InstanceUpdates:
    """Updates of versions' instances. Each executor is updated independently of the others."""

    def __init__(self, instances: InstanceTable) -> None:
        self._instances = instances

    def begin_update(self, served: ServedVersion, session: Session, slots: Iterable[Slot]) -> None:
        """Have an executor host a version's instances in these slots and in no others."""
        hosted = session.hosted[served]
        hosted.error_status = ""
        current = {
            number: self._instances.placed[number].slot
            for number, instance in hosted.instances.items()
            if not instance.retiring
        }
        missing, hosted.surplus = match_slots(slots, current)
        revision = next((instance.revision for instance in hosted.instances.values()), b"")
        hosted.awaited = set(self._instances.load_instances(served, session, missing, revision))
        self._unload_surplus(hosted)

    def on_load_finished(self, hosted: HostedVersion, number: int, error_status: str = "") -> None:
        """Record that an instance is ready or, if there is an error, could not be loaded."""
        if number in hosted.awaited:
            hosted.awaited.discard(number)
            hosted.error_status = hosted.error_status or error_status
            self._unload_surplus(hosted)

    def _unload_surplus(self, hosted: HostedVersion) -> None:
        if hosted.awaited or hosted.error_status:
            return
        for number in list(hosted.surplus):
            placed = self._instances.placed[number]
            pool = placed.served.pool
            if pool is not None:
                pool.roster.retire_after_sequences(placed.instance)
            self._instances.unload_when_idle(placed, _CAUSE)


def match_slots(wanted: Iterable[Slot], current: Mapping[int, Slot]) -> tuple[list[Slot], set[int]]:
    """Return the slots without an instance, and the numbers of instances without a slot.

    As on Triton, an instance is kept if its slot and a wanted one differ only in the name.
    """
    missing = list(wanted)
    others = []
    for number, slot in current.items():
        if slot in missing:
            missing.remove(slot)
        else:
            others.append(number)
    surplus = set()
    for number in others:
        unnamed = replace(current[number], name="")
        same = next((slot for slot in missing if replace(slot, name="") == unnamed), None)
        if same is None:
            surplus.add(number)
        else:
            missing.remove(same)
    return missing, surplus


def is_updating(sessions: Collection[Session], served: ServedVersion) -> bool:
    """Return whether instances that an update asked for are still being loaded."""
    hosted_versions = [session.hosted.get(served) for session in sessions]
    return any(hosted is not None and hosted.awaited for hosted in hosted_versions)


def update_error(sessions: Collection[Session], served: ServedVersion) -> str:
    """Return why an instance of an update could not be loaded; empty if none has failed."""
    hosted_versions = [session.hosted.get(served) for session in sessions]
    return next(
        (
            hosted.error_status
            for hosted in hosted_versions
            if hosted is not None and hosted.error_status
        ),
        "",
    )
