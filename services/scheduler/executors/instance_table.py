"""All instances that executors have, or are loading, by number.

Sends executors the commands to load and to unload them. Which instances there shall be, and what
that means for a version's state, is decided elsewhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nereid.pb import nereid_pb2 as pb
from nereid.services.scheduler.executors.instance import Instance
from nereid.services.scheduler.executors.placement import uuid_of
from nereid.services.scheduler.executors.sessions import Placed

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from nereid.services.scheduler.executors.placement import Slot
    from nereid.services.scheduler.executors.sessions import Part, Session
    from nereid.services.scheduler.models.catalogue import ServedVersion
    from nereid.services.scheduler.models.load_rules import LoadRules


class Instances:
    """The instances of all versions on all executors."""

    def __init__(self, rules: LoadRules, numbers: Iterator[int]) -> None:
        self._rules = rules
        self._numbers = numbers
        self.placed: dict[int, Placed] = {}

    @property
    def open(self) -> int:
        """How many instances' streams are open."""
        return sum(placed.instance.stream is not None for placed in self.placed.values())

    def add(
        self, served: ServedVersion, session: Session, slots: Iterable[Slot], revision: bytes = b""
    ) -> list[int]:
        """Have an executor load instances; their numbers."""
        added = []
        for slot in slots:
            instance = Instance(next(self._numbers), slot.name, session.name, revision=revision)
            instance.gpu_uuid = uuid_of(slot, session.hello)
            if instance.gpu_uuid and served.runtime is not None:
                # Creates the GPU's counters, so that metrics show them from now on.
                served.runtime.statistics.gpus[instance.gpu_uuid]
            instance.shares = self._rules.shared_tensors.shared_with(session.hello.memory_domain)
            added.append(Placed(instance, served, session, slot))
            session.parts[served].instances[instance.id] = instance
            self.placed[instance.id] = added[-1]
        for each in added:
            session.send(self._rules.load_command(each))
        return [each.instance.id for each in added]

    def unload(self, placed: Placed, cause: str) -> None:
        """Have an executor unload an instance. Its batch, if any, fails or runs elsewhere."""
        session, instance = placed.session, placed.instance
        unload = pb.UnloadInstance(instance=instance.id)
        session.send(pb.ExecutorCommand(unload=unload))
        part = session.parts.get(placed.served)
        if part is not None:
            self.drop(part, instance, cause)

    def unload_all(self, served: ServedVersion, cause: str) -> None:
        """Have executors unload all instances of a version."""
        for placed in [each for each in self.placed.values() if each.served is served]:
            self.unload(placed, cause)

    def drop(self, part: Part, instance: Instance, cause: str) -> None:
        """Remove a lost instance. Its batch, if any, fails or runs elsewhere."""
        placed = self.forget(part, instance)
        stream, instance.stream = instance.stream, None
        if stream is not None:
            stream.finish()
        if placed is not None and placed.served.runtime is not None:
            placed.served.runtime.lose_instance(instance, cause)

    def forget(self, part: Part, instance: Instance) -> Placed | None:
        """Remove an instance that has no work left."""
        part.instances.pop(instance.id, None)
        part.surplus.discard(instance.id)
        return self.placed.pop(instance.id, None)
