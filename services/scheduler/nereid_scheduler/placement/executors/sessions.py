"""The executors that have joined, and the instances that each has of each version.

Knows executors as streams that accept commands, not the transport. Decides nothing.
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
    """The scheduler's end of a Join stream; nereid.rpc.Call is one."""

    def send(self, message: bytes) -> None:
        """Write a message; nothing happens once the stream is broken."""

    def finish(self) -> None:
        """End the stream."""


@dataclass(slots=True, eq=False)
class HostedVersion:
    """The instances of one version that one executor has, or is loading."""

    instances: dict[int, RemoteInstance] = field(default_factory=dict)
    # By instance: the memory that its load took, in bytes by device, as its executor says.
    memory: dict[int, dict[str, int]] = field(default_factory=dict)
    # All of them have been ready at once.
    completed: bool = False
    # During a resize: the instances that are loading, and those to unload once these are ready.
    awaited: set[int] = field(default_factory=set)
    surplus: set[int] = field(default_factory=set)
    # Why an awaited instance failed to load.
    error_status: str = ""

    @property
    def ready(self) -> int:
        return sum(instance.stream is not None for instance in self.instances.values())


@dataclass(slots=True, eq=False)
class Session:
    """An executor, from its hello to the end of its stream."""

    hello: pb.Hello
    stream: CommandStream
    # Of the executor's process (core.methods.EXECUTOR_KEY); empty: it has said none.
    process: str = ""
    hosted: dict[ServedVersion, HostedVersion] = field(default_factory=dict)
    leaving: bool = False
    # Its stream has ended.
    gone: bool = False
    # Its last report about its devices, and about its models' own metrics.
    usage: pb.DeviceUsage | None = None
    custom_metrics: pb.CustomMetrics | None = None

    @property
    def name(self) -> str:
        return self.hello.name

    def is_same_process(self, process: str) -> bool:
        """Whether a stream with this EXECUTOR_KEY comes from this executor's process."""
        return bool(process) and hmac.compare_digest(process.encode(), self.process.encode())

    def executing(self) -> Iterator[tuple[ServedVersion, SentBatch]]:
        """The batches that its instances execute."""
        for served, hosted in self.hosted.items():
            for instance in hosted.instances.values():
                if instance.batches.first is not None:
                    yield served, instance.batches.first

    def send(self, command: pb.ExecutorCommand) -> None:
        self.stream.send(command.SerializeToString())


def memory_of(served: ServedVersion, sessions: Iterable[Session]) -> dict[str, int]:
    """The bytes that the instances of a version take, by device, on all executors."""
    taken: dict[str, int] = {}
    for session in sessions:
        hosted = session.hosted.get(served)
        for sizes in () if hosted is None else hosted.memory.values():
            for device, size in sizes.items():
                taken[device] = taken.get(device, 0) + size
    return taken


@dataclass(frozen=True, slots=True)
class PlacedInstance:
    """An instance, its version, its executor, and which of the version's slots it fills there."""

    instance: RemoteInstance
    served: ServedVersion
    session: Session
    slot: Slot
