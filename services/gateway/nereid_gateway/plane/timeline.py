"""Timeline of the mesh, as one gateway gathers it from gateways, schedulers and executors.

All records are requested at once, so that they cover the same seconds.
"""

from __future__ import annotations

import socket
from contextlib import aclosing
from time import monotonic_ns, time_ns
from typing import TYPE_CHECKING, ClassVar, Final

from nereid import rpc
from nereid.core.errors import Unavailable
from nereid.core.methods import TIMELINE_PATH
from nereid.core.retry_after import DEFAULT_MS
from nereid.pb import nereid_pb2 as pb
from nereid.timeline import wire
from nereid.timeline.collection import OwnFrames, RemoteFrames, TimelineStreams, read_all
from nereid.timeline.recorder import Recorder
from nereid_gateway.core.request_ring import RequestRing

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

    from nereid.mesh_routing.access import MeshAccess
    from nereid.process.gateway_group import GatewayGroup

# A service that sends nothing for this long counts as missing.
_SILENCE_LIMIT_S: Final = 10.0
_GATHERING: Final = "the timeline is being gathered for another client; try again"


class GatewayTimeline:
    """Timeline of one gateway. Call start() once and close() once."""

    # False if the gateway records nothing.
    records: ClassVar[bool] = True

    def __init__(self, seconds: float, mesh: MeshAccess, group: GatewayGroup | None) -> None:
        """Prepare to record the last `seconds` seconds."""
        name = socket.gethostname()
        if group is not None:
            name += f"-{group.number}"
        self.recorder = Recorder("gateway", name, seconds)
        self._own = OwnFrames(self.recorder)
        self._mesh = mesh
        self._group = group
        self._others: dict[str, rpc.Channel] = {}
        self._server: rpc.Server | None = None
        self._gathering = False
        self.requests: RequestRing | None = RequestRing(self.recorder)

    def record_lost_link(self, scheduler: str) -> None:
        """Record that the link to a scheduler broke."""
        self.recorder.events.record("link lost", scheduler)

    async def start(self) -> None:
        """Serve this gateway's records to its group. Raises OSError if binding fails."""
        group = self._group
        if group is None:
            return
        streams = TimelineStreams(lambda request: self._own.collect(request.last_ns))
        self._server = rpc.Server(rpc.Handlers(stream={TIMELINE_PATH: streams.accept}))
        await self._server.listen(f"unix:{_socket(group, group.number)}")
        for number in range(group.size):
            if number != group.number:
                channel = rpc.SocketChannel(f"unix:{_socket(group, number)}")
                self._others[f"gateway {number}"] = channel

    async def close(self) -> None:
        """Close the channels and the server."""
        for channel in self._others.values():
            await channel.close()
        if self._server is not None:
            await self._server.close()

    async def gather(self, last_s: float) -> AsyncGenerator[bytes]:
        """Yield a timeline file in parts. Raises Unavailable while another client gathers one."""
        if self._gathering:
            raise Unavailable(_GATHERING, retry_after_ms=DEFAULT_MS)
        self._gathering = True
        sources: list[tuple[str, RemoteFrames]] = []
        try:
            last_ns = round(last_s * 1e9)
            for name, channel in self._others.items():
                sources.append((name, self._ask(channel, pb.TimelineRequest(last_ns=last_ns))))
            schedulers = self._mesh.channels()
            for number, channel in enumerate(schedulers):
                # Each executor is connected to all schedulers, so only the first one is asked for
                # executors' records.
                request = pb.TimelineRequest(last_ns=last_ns, with_executors=not number)
                name = f"scheduler {number + 1} of {len(schedulers)}"
                sources.append((name, self._ask(channel, request)))
            yield wire.file_part(wire.epoch_frame(time_ns() - monotonic_ns()))
            for frames in (self._own.collect(last_ns), read_all(sources)):
                async with aclosing(frames):
                    async for frame in frames:
                        yield wire.file_part(frame)
        finally:
            self._gathering = False
            for _, source in sources:
                source.close()

    def _ask(self, channel: rpc.Channel, request: pb.TimelineRequest) -> RemoteFrames:
        clock = self.recorder.clock
        return RemoteFrames(channel, request, clock, silence_limit_s=_SILENCE_LIMIT_S)


class NoTimeline(GatewayTimeline):
    """Timeline of a gateway that records nothing."""

    records: ClassVar[bool] = False

    def __init__(self) -> None:
        self.requests = None

    def record_lost_link(self, scheduler: str) -> None:
        """Record nothing."""

    async def start(self) -> None:
        """Serve nothing."""

    async def close(self) -> None:
        """Close nothing."""


NO_TIMELINE: Final = NoTimeline()


def _socket(group: GatewayGroup, number: int) -> Path:
    return group.directory / f"timeline-{number}.sock"
