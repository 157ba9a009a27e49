"""Table of all instances that executors host or are loading, by number."""

# layout: compiled

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

from nereid.pb import nereid_pb2 as pb
from nereid_scheduler.core.instances.instance_places import device_of, uuid_of
from nereid_scheduler.core.instances.remote_instance import RemoteInstance
from nereid_scheduler.placement.executors.sessions import PlacedInstance

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from nereid_scheduler.core.instances.instance_places import Slot
    from nereid_scheduler.placement.executors.sessions import HostedVersion, Session
    from nereid_scheduler.placement.loads.load_rules import LoadRules
    from nereid_scheduler.placement.models.catalogue import ServedVersion


class InstanceTable:
    """Keeps the instances of all versions on all executors."""

    def __init__(self, rules: LoadRules, numbers: Iterator[int]) -> None:
        self._rules = rules
        self._numbers = numbers
        self.placed: dict[int, PlacedInstance] = {}
        # Instances that are being unloaded or finalized. Key: the instance's number.
        self._ending: dict[int, tuple[ServedVersion, Session]] = {}
        self._ends: dict[ServedVersion, asyncio.Future[None]] = {}

    @property
    def open(self) -> int:
        """Number of instances whose streams are open."""
        return sum(placed.instance.stream is not None for placed in self.placed.values())

    def load_instances(
        self, served: ServedVersion, session: Session, slots: Iterable[Slot], revision: bytes = b""
    ) -> list[int]:
        """Have an executor load one instance for each slot; return the instances' numbers."""
        added = []
        limiter = self._rules.rate_limiter
        for slot in slots:
            instance = RemoteInstance(
                next(self._numbers), slot.name, session.name, revision=revision
            )
            instance.gpu_uuid = uuid_of(slot, session.hello)
            if instance.gpu_uuid and served.runtime is not None:
                # Reading the entry creates the GPU's counters, so that metrics show the GPU at
                # once.
                served.runtime.statistics.gpus[instance.gpu_uuid]
            instance.request_withdrawal = partial(_request_withdrawal, session, instance.id)
            instance.shares = self._rules.segment_owners.shares_domain(session.hello.shm_namespace)
            if limiter is not None:
                limiter.add_instance(instance, slot.rate_limit, device_of(slot, session.hello))
            added.append(PlacedInstance(instance, served, session, slot))
            session.hosted[served].instances[instance.id] = instance
            self.placed[instance.id] = added[-1]
        for placed in added:
            session.send(self._rules.load_command(placed))
        return [placed.instance.id for placed in added]

    def unload_instance(self, placed: PlacedInstance, cause: str, *, keep: bool = False) -> None:
        """Have an executor unload an instance. Its batch, if any, fails or runs elsewhere.

        keep: the executor keeps the model loaded for another scheduler.
        """
        session, instance = placed.session, placed.instance
        if not session.gone:
            # If the session has ended, no executor reports the end of the unload.
            self._ending[instance.id] = placed.served, session
            unload = pb.UnloadInstance(instance=instance.id, keep=keep)
            session.send(pb.ExecutorCommand(unload=unload))
        hosted = session.hosted.get(placed.served)
        if hosted is not None:
            self.drop_instance(hosted, instance, cause)

    def unload_when_idle(self, placed: PlacedInstance, cause: str, *, keep: bool = False) -> None:
        """Unload an instance once it has no work. Do not send it any more batches."""
        if placed.instance.at_work:
            placed.instance.on_idle = partial(self.unload_instance, placed, cause, keep=keep)
        else:
            self.unload_instance(placed, cause, keep=keep)

    def unload_version(self, served: ServedVersion, cause: str, *, keep: bool = False) -> None:
        """Have executors unload all instances of a version."""
        for placed in self.instances_of(served):
            self.unload_instance(placed, cause, keep=keep)

    def instances_of(self, served: ServedVersion) -> list[PlacedInstance]:
        """Return the instances of a version on all executors."""
        return [placed for placed in self.placed.values() if placed.served is served]

    async def ended(self, served: ServedVersion) -> None:
        """Wait until no executor is still unloading instances of a version."""
        if self._is_ending(served):
            end = self._ends[served] = asyncio.get_running_loop().create_future()
            await end

    def instance_ended(self, session: Session, number: int) -> None:
        """Note that an executor has unloaded an instance."""
        _, executor = self._ending.get(number, (None, None))
        if executor is session:
            del self._ending[number]
            self._notify_ends()

    def executor_left(self, session: Session) -> None:
        """Forget which instances an executor that has left was unloading."""
        self._ending = {
            number: ending for number, ending in self._ending.items() if ending[1] is not session
        }
        self._notify_ends()

    def _is_ending(self, served: ServedVersion) -> bool:
        return any(ending is served for ending, _ in self._ending.values())

    def _notify_ends(self) -> None:
        for served in [waiting for waiting in self._ends if not self._is_ending(waiting)]:
            end = self._ends.pop(served)
            if not end.done():
                end.set_result(None)

    def drop_instance(self, hosted: HostedVersion, instance: RemoteInstance, cause: str) -> None:
        """Remove a lost instance and end its stream. Its batch, if any, fails or runs elsewhere."""
        placed = self.remove_instance(hosted, instance)
        stream, instance.stream = instance.stream, None
        if stream is not None:
            stream.finish()
        model = None if placed is None else placed.served.model_version
        if model is not None:
            model.lose_instance(instance, cause)

    def remove_instance(
        self, hosted: HostedVersion, instance: RemoteInstance
    ) -> PlacedInstance | None:
        """Remove an instance that has no work. Return it, or `None` if the number is unknown."""
        hosted.instances.pop(instance.id, None)
        hosted.surplus.discard(instance.id)
        hosted.memory.pop(instance.id, None)
        if self._rules.rate_limiter is not None:
            self._rules.rate_limiter.remove_instance(instance)
        return self.placed.pop(instance.id, None)


def _request_withdrawal(session: Session, instance: int, batch: int) -> None:
    withdraw = pb.Withdraw(instance=instance, batch=batch)
    session.send(pb.ExecutorCommand(withdraw=withdraw))
