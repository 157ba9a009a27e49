"""Instances that stay loaded without a scheduler, until a scheduler asks for the same instances.

If none asks, they are unloaded some time after a scheduler has joined. Each load command says how
much memory the scheduler leaves free; kept instances that need more are unloaded. Without a budget,
they are unloaded if a load fails for lack of memory.
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
    """Content from which an instance is loaded. Instances with equal content are equivalent."""

    # Model, version, and kind and number of the device.
    place: tuple[str, int, int, int]
    # The load command without the fields that differ between schedulers. `nameless` also lacks the
    # instance's name.
    command: bytes
    nameless: bytes

    @classmethod
    def of_command(cls, load: pb.LoadInstance) -> InstanceContent:
        """Return the content that a scheduler's command asks for."""
        bare = pb.LoadInstance()
        bare.CopyFrom(load)
        for name in ("instance", "scheduler", "epoch", "shm_namespace", "kept_bytes"):
            bare.ClearField(name)
        command = bare.SerializeToString(deterministic=True)
        bare.ClearField("instance_name")
        place = (model_of(load), load.version, load.kind, load.device_id)
        return cls(place, command, bare.SerializeToString(deterministic=True))


def model_of(load: pb.LoadInstance) -> str:
    """Return the model's name in the mesh."""
    return load.model or load.config.name


class KeptInstances:
    """The kept instances of one executor."""

    def __init__(self, keep_s: float, is_joined: Callable[[], bool]) -> None:
        """Keep instances for keep_s seconds after the last load command; 0 keeps none."""
        self.keep_s = keep_s
        self._is_joined = is_joined
        self._kept: dict[Instance, InstanceContent] = {}
        # Key: a stopped instance. Value: a future that is done once the instance has ended.
        self._ending: dict[Instance, asyncio.Future[None]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._kept)

    def __iter__(self) -> Iterator[Instance]:
        return iter(list(self._kept))

    def add(self, instance: Instance, content: InstanceContent) -> None:
        """Keep an instance that was stopped and whose model is still loaded."""
        self._kept[instance] = content
        self.restart_timer()

    def take(self, content: InstanceContent) -> Instance | None:
        """Remove and return an instance with this content; `None` if there is none."""
        self.restart_timer()
        for instance, kept in self._kept.items():
            if kept.command == content.command:
                del self._kept[instance]
                return instance
        return None

    def take_obsolete(self, content: InstanceContent) -> list[Instance]:
        """Remove and return the instances that a command replaces.

        They have the command's model, version and device, but differ in anything other than the
        name.
        """
        obsolete = [
            instance
            for instance, kept in self._kept.items()
            if kept.place == content.place and kept.nameless != content.nameless
        ]
        for instance in obsolete:
            del self._kept[instance]
        return obsolete

    def take_excess(self, limits: Mapping[str, int]) -> list[Instance]:
        """Remove and return instances, so that the others fit into the memory limits (bytes).

        Instances that have executed the fewest batches are removed first.
        """
        over = {device: -limit for device, limit in limits.items()}
        for instance in self._kept:
            for device in over.keys() & instance.memory.keys():
                over[device] += instance.memory[device]
        removed: list[Instance] = []
        for instance in sorted(self._kept, key=lambda kept: kept.batches):
            if any(excess > 0 and instance.memory.get(device) for device, excess in over.items()):
                removed.append(instance)
                del self._kept[instance]
                for device in over:
                    over[device] -= instance.memory.get(device, 0)
        return removed

    def take_all(self) -> list[Instance]:
        """Remove and return all instances."""
        instances = list(self._kept)
        self._kept.clear()
        return instances

    async def unload(self, instances: Iterable[Instance], timeout_s: float) -> bool:
        """Unload instances that were removed; return whether they have ended within timeout_s."""
        ends = [self._begin_unload(instance) for instance in instances]
        if not ends:
            return True
        _, pending = await asyncio.wait(ends, timeout=timeout_s)
        return not pending

    def instance_ended(self, instance: Instance) -> None:
        """Note that an instance has ended and has no model any more."""
        self._kept.pop(instance, None)
        end = self._ending.pop(instance, None)
        if end is not None:
            end.set_result(None)

    def restart_timer(self) -> None:
        """Restart the time within which a scheduler may ask for kept instances."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._kept:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self.keep_s, self._on_timeout)

    def close(self) -> None:
        """Cancel the timer, since the executor ends."""
        if self._timer is not None:
            self._timer.cancel()

    def _on_timeout(self) -> None:
        self._timer = None
        # Without a scheduler, nobody could have asked for the instances.
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
