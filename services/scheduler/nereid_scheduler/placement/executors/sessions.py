"""Executors that have joined, and the instances of each version that each executor hosts."""

from __future__ import annotations

import hmac
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from nereid.pb import nereid_pb2 as pb
    from nereid_scheduler.core.instances.instance_batches import SentBatch
    from nereid_scheduler.core.instances.instance_places import Slot
    from nereid_scheduler.core.instances.remote_instance import RemoteInstance
    from nereid_scheduler.placement.models.catalogue import ServedVersion


class CommandStream(Protocol):
    """Scheduler's end of a Join stream, such as a nereid.rpc.Call."""

    def send(self, message: bytes) -> None:
        """Write a message. Nothing happens if the stream is broken."""

    def finish(self) -> None:
        """End the stream."""


@dataclass(slots=True, eq=False)
class HostedVersion:
    """Instances of one version that one executor hosts or is loading."""

    instances: dict[int, RemoteInstance] = field(default_factory=dict)
    # Bytes by device that an instance's load took. Key: the instance's number.
    memory: dict[int, dict[str, int]] = field(default_factory=dict)
    # True once all instances have been ready at the same time.
    completed: bool = False
    # During a resize: instances that load, and instances to unload afterwards.
    awaited: set[int] = field(default_factory=set)
    surplus: set[int] = field(default_factory=set)
    error_status: str = ""

    @property
    def ready(self) -> int:
        """Number of instances whose streams are open."""
        return sum(instance.stream is not None for instance in self.instances.values())


@dataclass(slots=True, eq=False)
class Session:
    """One executor's session, from its hello to the end of its stream."""

    hello: pb.Hello
    stream: CommandStream
    # EXECUTOR_KEY; empty if the executor sent none.
    process: str = ""
    hosted: dict[ServedVersion, HostedVersion] = field(default_factory=dict)
    leaving: bool = False
    gone: bool = False
    usage: pb.DeviceUsage | None = None
    custom_metrics: pb.CustomMetrics | None = None

    @property
    def name(self) -> str:
        """Name of the executor."""
        return self.hello.name

    def is_same_process(self, process: str) -> bool:
        """Return whether this EXECUTOR_KEY is the one of the executor's process."""
        return bool(process) and hmac.compare_digest(process.encode(), self.process.encode())

    def executing(self) -> Iterator[tuple[ServedVersion, SentBatch]]:
        """Yield the batches that the executor's instances are executing, with their versions."""
        for served, hosted in self.hosted.items():
            for instance in hosted.instances.values():
                if instance.batches.first is not None:
                    yield served, instance.batches.first

    def send(self, command: pb.ExecutorCommand) -> None:
        """Send a command to the executor. If its stream is broken, do nothing."""
        self.stream.send(command.SerializeToString())


def memory_of(served: ServedVersion, sessions: Iterable[Session]) -> dict[str, int]:
    """Return the bytes of memory that a version's instances take on all executors, by device."""
    bytes_by_device: dict[str, int] = {}
    for session in sessions:
        hosted = session.hosted.get(served)
        for sizes in () if hosted is None else hosted.memory.values():
            for device, size in sizes.items():
                bytes_by_device[device] = bytes_by_device.get(device, 0) + size
    return bytes_by_device


@dataclass(frozen=True, slots=True)
class PlacedInstance:
    """An instance with its version, its executor, and the slot of the version that it fills."""

    instance: RemoteInstance
    served: ServedVersion
    session: Session
    slot: Slot
