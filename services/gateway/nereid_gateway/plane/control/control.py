"""Control calls: what the gateway calls of the scheduler beside inference, in KServe's messages.

Passes bytes through; errors are those of nereid.core.errors.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from google.protobuf.message import DecodeError

from nereid.core.files.paced_reads import PacedReads
from nereid.mesh_routing.control_calls import (
    call_any,
    call_responsive_scheduler,
    call_scheduler,
    call_scheduler_again,
)
from nereid.pb import kserve_pb2

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from google.protobuf.message import Message

    from nereid.mesh_routing.route import MeshAccess
    from nereid.rpc import Channel
    from nereid_gateway.plane.control.model_counts import ModelCounts

    Read = Callable[[], Awaitable[bytes]]
    Response = TypeVar("Response", bound=Message)
    # The scheduler's response in another form; a function of a module, since calls share it.
    Render = Callable[[bytes], bytes]

_LOAD: Final = "RepositoryModelLoad"
_METRICS: Final = "Metrics"
_STATISTICS: Final = "ModelStatistics"
# Probes want to know within 2 s, whatever hangs. A scheduler that waits for a model's own readiness
# check says so first.
_READINESS: Final = frozenset({"ServerReady", "ModelReady"})
_ACCEPT_S: Final = 1.5
# Another scheduler is asked if one cannot say. Readiness is none of them: that one hangs is the
# response.
_READS: Final = frozenset(
    {"ModelMetadata", "ModelConfig", _STATISTICS, "RepositoryIndex", _METRICS, "Facts"}
)
# Of the whole mesh: what they cost depends on the mesh, not on what was asked.
_PAGES: Final = frozenset({_STATISTICS, "RepositoryIndex"})
# Those that change something, each to what it says, however often.
_CHANGES: Final = frozenset({_LOAD, "RepositoryModelUnload", "TraceSetting", "LogSettings"})


class Control:
    """The schedulers' control plane, as the gateway calls it: any of them serves each call."""

    def __init__(
        self,
        mesh: MeshAccess,
        timeout_s: float,
        reconnect_s: float = 0.0,
        *,
        counts: ModelCounts | None = None,
    ) -> None:
        """reconnect_s: how long a change waits for the next scheduler if one is lost meanwhile.
        counts: of schedulers that are gone as well; None: pages are as the schedulers show them.
        """
        # How a page of counters gets what other schedulers have counted.
        self._complete: dict[str, Callable[[Read], Awaitable[bytes]]] = {}
        if counts is not None:
            self._complete[_METRICS] = counts.complete_metrics
            self._complete[_STATISTICS] = counts.complete_statistics
        self._mesh = mesh
        self._timeout_s = timeout_s
        self._reconnect_s = reconnect_s
        self._pages: dict[str, PacedReads[tuple[bytes, Render], bytes]] = {
            method: PacedReads(partial(self._read_page, method)) for method in _PAGES
        }

    async def call_bytes(self, method: str, request: bytes) -> bytes:
        """One call, bytes in and bytes out. Loads have no time limit.

        Raises:
            NereidError: what the scheduler replied, or Unavailable when it did not.
        """
        whole = _request_of_page(method, request)
        return await (
            self._call_any(method, request) if whole is None else self.page(method, whole)
        )

    async def page(self, method: str, request: Message, render: Render = bytes) -> bytes:
        """What a call that names no model gives, rendered: one at a time for all who ask."""
        return await self._pages[method].get((request.SerializeToString(), render))

    async def _read_page(self, method: str, key: tuple[bytes, Render]) -> bytes:
        request, render = key
        return render(await self._call_any(method, request))

    async def _call_any(self, method: str, request: bytes) -> bytes:
        def read() -> Awaitable[bytes]:
            return call_any(
                self._mesh.channels(),
                lambda channel: self._call(channel, method, request),
                is_read=method in _READS,
            )

        complete = self._complete.get(method)
        return await (read() if complete is None else complete(read))

    async def _call(self, channel: Channel, method: str, request: bytes) -> bytes:
        if method in _READINESS:
            return await call_responsive_scheduler(
                channel, method, request, accept_s=_ACCEPT_S, timeout_s=self._timeout_s
            )
        timeout_s = None if method == _LOAD else self._timeout_s
        if method in _CHANGES:
            return await call_scheduler_again(
                channel,
                method,
                request,
                timeout_s,
                reconnect_s=self._reconnect_s,
                next_channel=lambda: next(iter(self._mesh.channels()), channel),
            )
        return await call_scheduler(channel, method, request, timeout_s)

    async def call(self, method: str, request: Message, response: type[Response]) -> Response:
        """One call with messages."""
        return response.FromString(await self.call_bytes(method, request.SerializeToString()))

    async def load(self, request: bytes) -> None:
        """Load a model as a RepositoryModelLoadRequest says, however long that takes."""
        await self.call_bytes(_LOAD, request)

    async def server_ready(self) -> bool:
        """Whether the scheduler is ready."""
        response = await self.call(
            "ServerReady", kserve_pb2.ServerReadyRequest(), kserve_pb2.ServerReadyResponse
        )
        return response.ready


def _request_of_page(method: str, request: bytes) -> Message | None:
    """The request as it is shared, if it is for a page of the whole mesh."""
    try:
        if method == "RepositoryIndex":
            index = kserve_pb2.RepositoryIndexRequest.FromString(request)
            if not index.repository_name:
                return kserve_pb2.RepositoryIndexRequest(ready=index.ready)
        elif method == _STATISTICS:
            statistics = kserve_pb2.ModelStatisticsRequest.FromString(request)
            if not statistics.name:
                return kserve_pb2.ModelStatisticsRequest(version=statistics.version)
    except DecodeError:
        # The scheduler says so.
        pass
    return None
