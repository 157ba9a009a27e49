"""New instance groups for a version in service: instances that fit stay, the others are exchanged.

Missing instances are loaded first. Surplus ones are unloaded when those are up, each after its
batch. If a missing instance cannot be loaded, the surplus stays.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from nereid.services.scheduler.executors.instance_table import Instances
    from nereid.services.scheduler.executors.placement import Slot
    from nereid.services.scheduler.executors.sessions import Part, Session
    from nereid.services.scheduler.models.catalogue import ServedVersion

_CAUSE = "it is one too many"


class InstanceUpdates:
    """Updates on each executor, which are independent of each other."""

    def __init__(self, instances: Instances) -> None:
        self._instances = instances

    def begin_update(self, served: ServedVersion, session: Session, slots: Iterable[Slot]) -> None:
        """Have an executor host the instances in these slots, and no others, of a version."""
        part = session.parts[served]
        missing = list(slots)
        part.surplus.clear()
        part.error_status = ""
        for number, instance in part.instances.items():
            if instance.going:
                continue
            slot = self._instances.placed[number].slot
            if slot in missing:
                missing.remove(slot)
            else:
                part.surplus.add(number)
        revision = next((each.revision for each in part.instances.values()), b"")
        part.awaited = set(self._instances.add(served, session, missing, revision))
        self._unload_surplus(part)

    def on_load_finished(self, part: Part, number: int, error_status: str = "") -> None:
        """An instance is up or, with an error, could not be loaded."""
        if number in part.awaited:
            part.awaited.discard(number)
            part.error_status = part.error_status or error_status
            self._unload_surplus(part)

    def _unload_surplus(self, part: Part) -> None:
        if part.awaited or part.error_status:
            return
        for number in list(part.surplus):
            placed = self._instances.placed[number]
            instance, runtime = placed.instance, placed.served.runtime
            if runtime is not None:
                runtime.retire_instance(instance)
            if not instance.at_work:
                self._instances.unload(placed, _CAUSE)
            else:
                instance.on_idle = partial(self._instances.unload, placed, _CAUSE)


def is_updating(sessions: Collection[Session], served: ServedVersion) -> bool:
    """Whether instances that an update asked for are still being loaded."""
    parts = [session.parts.get(served) for session in sessions]
    return any(part is not None and part.awaited for part in parts)


def update_error(sessions: Collection[Session], served: ServedVersion) -> str:
    """Why an instance that an update asked for could not be loaded; empty: all were."""
    parts = [session.parts.get(served) for session in sessions]
    return next((part.error_status for part in parts if part is not None and part.error_status), "")
