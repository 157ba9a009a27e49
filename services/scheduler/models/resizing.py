"""Other instance groups for a version that serves: what fits stays, the rest is exchanged.

What is missing is loaded first; what is too much goes when that is here, each instance after its
batch. If something missing cannot be loaded, nothing goes.
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


class Resizing:
    """Part by part."""

    def __init__(self, instances: Instances) -> None:
        self._instances = instances

    def begin(self, served: ServedVersion, session: Session, slots: Iterable[Slot]) -> None:
        """From now on an executor shall have these instances of a version."""
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
        self._finish(part)

    def arrived(self, part: Part, number: int, error_status: str = "") -> None:
        """An instance is here, or, with a fault, will not come."""
        if number in part.awaited:
            part.awaited.discard(number)
            part.error_status = part.error_status or error_status
            self._finish(part)

    def _finish(self, part: Part) -> None:
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


def is_under_way(sessions: Collection[Session], served: ServedVersion) -> bool:
    """Whether instances are awaited."""
    parts = [session.parts.get(served) for session in sessions]
    return any(part is not None and part.awaited for part in parts)


def error_status_of(sessions: Collection[Session], served: ServedVersion) -> str:
    """Why an instance that was awaited did not come; empty: all came."""
    parts = [session.parts.get(served) for session in sessions]
    return next((part.error_status for part in parts if part is not None and part.error_status), "")
