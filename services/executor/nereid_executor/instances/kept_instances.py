"""Instances whose models stay loaded though no scheduler has them, for one that asks for the same.

An instance is adopted if a scheduler asks for one with equal content and the model's files are
those that it was loaded from. Those that nobody has asked for are unloaded some time after a
scheduler has joined; while there is none, they wait for it. Used on the event loop alone.

There is no budget of memory here, but the scheduler's: its residency knows the sizes that instances
have reported and what models it has placed here, and says with each load what these leave free, by
device. Kept instances beyond that make way. An executor that no scheduler has given a budget keeps
all, and unloads them if a load fails for want of memory.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, NamedTuple

from nereid.pb import nereid_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from nereid_executor.instances.instance import Instance

_log = logging.getLogger(__name__)


class InstanceContent(NamedTuple):
    """What an instance is loaded from: those with equal contents may stand for each other."""

    # Model, version, kind and number of the device.
    place: tuple[str, int, int, int]
    # The command without what differs between schedulers; and without the instance's name, too.
    command: bytes
    nameless: bytes

    @classmethod
    def of_command(cls, load: pb.LoadInstance) -> InstanceContent:
        """The content that a scheduler asks for."""
        bare = pb.LoadInstance()
        bare.CopyFrom(load)
        for name in ("instance", "scheduler", "epoch", "shm_namespace", "kept_bytes"):
            bare.ClearField(name)
        command = bare.SerializeToString(deterministic=True)
        bare.ClearField("instance_name")
        place = (model_of(load), load.version, load.kind, load.device_id)
        return cls(place, command, bare.SerializeToString(deterministic=True))


def model_of(load: pb.LoadInstance) -> str:
    """The model's name in the mesh."""
    return load.model or load.config.name


class KeptInstances:
    """One executor's."""

    def __init__(self, keep_s: float, is_joined: Callable[[], bool]) -> None:
        """keep_s: how long after the last command to load; 0: nothing is kept. is_joined: whether
        there is a scheduler that has sent a command.
        """
        self.keep_s = keep_s
        self._is_joined = is_joined
        self._kept: dict[Instance, InstanceContent] = {}
        # Those that were stopped for good, until they have ended.
        self._ending: dict[Instance, asyncio.Future[None]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._kept)

    def __iter__(self) -> Iterator[Instance]:
        return iter(list(self._kept))

    def add(self, instance: Instance, content: InstanceContent) -> None:
        """The instance was stopped, and keeps its model."""
        self._kept[instance] = content
        self.restart_timer()

    def take(self, content: InstanceContent) -> Instance | None:
        """One with this content, for a scheduler."""
        self.restart_timer()
        for instance, each in self._kept.items():
            if each.command == content.command:
                del self._kept[instance]
                return instance
        return None

    def take_obsolete(self, content: InstanceContent) -> list[Instance]:
        """Those in the same place that are not what schedulers ask for now, by this content."""
        found = [
            instance
            for instance, each in self._kept.items()
            if each.place == content.place and each.nameless != content.nameless
        ]
        for instance in found:
            del self._kept[instance]
        return found

    def take_excess(self, limits: Mapping[str, int]) -> list[Instance]:
        """Those that have executed least, so that the others take no more memory than this, in
        bytes by device; a device without a limit is not looked at.
        """
        over = {device: -limit for device, limit in limits.items()}
        for instance in self._kept:
            for device in over.keys() & instance.memory.keys():
                over[device] += instance.memory[device]
        found: list[Instance] = []
        for instance in sorted(self._kept, key=lambda each: each.batches):
            if any(excess > 0 and instance.memory.get(device) for device, excess in over.items()):
                found.append(instance)
                del self._kept[instance]
                for device in over:
                    over[device] -= instance.memory.get(device, 0)
        return found

    def take_all(self) -> list[Instance]:
        """All of them."""
        found = list(self._kept)
        self._kept.clear()
        return found

    async def unload(self, instances: Iterable[Instance], timeout_s: float) -> bool:
        """Unload instances that were taken, and wait until they have ended, or for timeout_s."""
        ends = [self._begin_unload(each) for each in instances]
        if not ends:
            return True
        _, pending = await asyncio.wait(ends, timeout=timeout_s)
        return not pending

    def instance_ended(self, instance: Instance) -> None:
        """It has no model any more."""
        self._kept.pop(instance, None)
        end = self._ending.pop(instance, None)
        if end is not None:
            end.set_result(None)

    def restart_timer(self) -> None:
        """A scheduler has joined, or asks for instances: it may ask for those that are kept."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._kept:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self.keep_s, self._on_timeout)

    def close(self) -> None:
        """The executor ends."""
        if self._timer is not None:
            self._timer.cancel()

    def _on_timeout(self) -> None:
        self._timer = None
        # Without a scheduler nobody could have asked.
        if not self._is_joined():
            return
        for instance in self.take_all():
            _log.info("no scheduler asks for instance %s: unloading it", instance.spec.name)
            self._begin_unload(instance)

    def _begin_unload(self, instance: Instance) -> asyncio.Future[None]:
        end = self._ending.get(instance)
        if end is None:
            end = self._ending[instance] = asyncio.get_running_loop().create_future()
            instance.stop()
        return end
