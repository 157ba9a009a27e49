"""Executors that have joined, and the instances that each one has of each version.

It knows executors as streams that accept commands, not the transport, and decides nothing.
"""

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
    """Scheduler's end of a Join stream; nereid.rpc.Call is one."""

    def send(self, message: bytes) -> None:
        """Write a message; nothing happens once the stream is broken."""

    def finish(self) -> None:
        """End the stream."""


@dataclass(slots=True, eq=False)
class HostedVersion:
    """Instances of one version that one executor has or is loading."""

    instances: dict[int, RemoteInstance] = field(default_factory=dict)
    # Memory that each instance's load took, as its executor says, in bytes by device.
    memory: dict[int, dict[str, int]] = field(default_factory=dict)
    # Set once all instances have been ready at the same time.
    completed: bool = False
    # During a resize: instances that are loading, and those to unload when they are ready.
    awaited: set[int] = field(default_factory=set)
    surplus: set[int] = field(default_factory=set)
    # Reason why an awaited instance failed to load.
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
    # Key of the executor's process (core.methods.EXECUTOR_KEY); empty if it has sent none.
    process: str = ""
    hosted: dict[ServedVersion, HostedVersion] = field(default_factory=dict)
    leaving: bool = False
    # Set when the stream has ended.
    gone: bool = False
    # Last reports of the executor about its devices and about its models' own metrics.
    usage: pb.DeviceUsage | None = None
    custom_metrics: pb.CustomMetrics | None = None

    @property
    def name(self) -> str:
        """Name of the executor."""
        return self.hello.name

    def is_same_process(self, process: str) -> bool:
        """Return whether a stream with this EXECUTOR_KEY comes from this executor's process."""
        return bool(process) and hmac.compare_digest(process.encode(), self.process.encode())

    def executing(self) -> Iterator[tuple[ServedVersion, SentBatch]]:
        """Yield the batches that the executor's instances execute, with their versions."""
        for served, hosted in self.hosted.items():
            for instance in hosted.instances.values():
                if instance.batches.first is not None:
                    yield served, instance.batches.first

    def send(self, command: pb.ExecutorCommand) -> None:
        """Send a command to the executor; nothing happens once its stream is broken."""
        self.stream.send(command.SerializeToString())


def memory_of(served: ServedVersion, sessions: Iterable[Session]) -> dict[str, int]:
    """Return the bytes that a version's instances take on all executors, by device."""
    bytes_by_device: dict[str, int] = {}
    for session in sessions:
        hosted = session.hosted.get(served)
        for sizes in () if hosted is None else hosted.memory.values():
            for device, size in sizes.items():
                bytes_by_device[device] = bytes_by_device.get(device, 0) + size
    return bytes_by_device


@dataclass(frozen=True, slots=True)
class PlacedInstance:
    """Instance with its version, its executor, and the version's slot that it fills there."""

    instance: RemoteInstance
    served: ServedVersion
    session: Session
    slot: Slot
