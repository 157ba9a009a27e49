"""Executors as the scheduler sees them: who has joined, and what each has of which version.

Knows executors as streams that take commands, not how these travel. Decides nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from nereid.pb import nereid_pb2 as pb
    from nereid.services.scheduler.executors.instance import Instance
    from nereid.services.scheduler.executors.placement import Slot
    from nereid.services.scheduler.models.catalogue import ServedVersion


class CommandStream(Protocol):
    """The scheduler's end of a Join stream; nereid.rpc.Call is one."""

    def send(self, message: bytes) -> None:
        """Write a message; nothing happens once the stream is broken."""

    def finish(self) -> None:
        """End the stream."""


@dataclass(slots=True, eq=False)
class Part:
    """What one executor has, or is getting, of one version."""

    instances: dict[int, Instance] = field(default_factory=dict)
    # All of them have been ready at once.
    completed: bool = False
    # While other instance groups are taken on: those to come, and those to go once they are here.
    awaited: set[int] = field(default_factory=set)
    surplus: set[int] = field(default_factory=set)
    # Why the last one that was awaited did not come.
    error_status: str = ""

    @property
    def ready(self) -> int:
        return sum(instance.stream is not None for instance in self.instances.values())


@dataclass(slots=True, eq=False)
class Session:
    """An executor that has joined, from its hello to its end."""

    hello: pb.Hello
    stream: CommandStream
    parts: dict[ServedVersion, Part] = field(default_factory=dict)
    leaving: bool = False
    # Its stream is at its end.
    gone: bool = False
    # What it told last of its devices.
    usage: pb.DeviceUsage | None = None
    # And of its models' own metrics.
    custom_metrics: pb.CustomMetrics | None = None

    @property
    def name(self) -> str:
        return self.hello.name

    def send(self, command: pb.ExecutorCommand) -> None:
        self.stream.send(command.SerializeToString())


@dataclass(frozen=True, slots=True)
class Placed:
    """Where an instance belongs, and which of the version's instances it is there."""

    instance: Instance
    served: ServedVersion
    session: Session
    slot: Slot
