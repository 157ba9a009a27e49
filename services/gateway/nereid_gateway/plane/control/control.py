"""Control calls to the scheduler: all calls except inference, in KServe's messages."""

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

    from nereid.mesh_routing.access import MeshAccess
    from nereid.rpc import Channel
    from nereid_gateway.plane.control.model_counts import ModelCounts

    Read = Callable[[], Awaitable[bytes]]
    Response = TypeVar("Response", bound=Message)
    # Converts the scheduler's response. Only calls with the same function share a response, so this
    # is a module-level function.
    Render = Callable[[bytes], bytes]

_LOAD: Final = "RepositoryModelLoad"
_METRICS: Final = "Metrics"
_STATISTICS: Final = "ModelStatistics"
# Probes expect a response within 2 s. A scheduler that waits for a model's own readiness check
# reports the wait before this limit.
_READINESS: Final = frozenset({"ServerReady", "ModelReady"})
_ACCEPT_S: Final = 1.5
# If a scheduler fails, these calls go to another one. Calls about readiness do not: a probe has to
# report that a scheduler hangs.
_READS: Final = frozenset(
    {
        "ModelMetadata",
        "ModelConfig",
        "ModelText",
        _STATISTICS,
        "RepositoryIndex",
        _METRICS,
        "Facts",
    }
)
# Responses for the whole mesh, whose cost depends on the size of the mesh.
_WHOLE_MESH_CALLS: Final = frozenset({_STATISTICS, "RepositoryIndex"})
# These calls may be repeated, because each sets the state that it names.
_CHANGES: Final = frozenset(
    {_LOAD, "RepositoryModelUnload", "TraceSetting", "LogSettings", "ModelTraffic"}
)


class Control:
    """Control plane of the schedulers. Any scheduler can serve each call."""

    def __init__(
        self,
        mesh: MeshAccess,
        timeout_s: float,
        reconnect_s: float = 0.0,
        *,
        counts: ModelCounts | None = None,
    ) -> None:
        """Prepare calls to the schedulers of a mesh.

        reconnect_s: if a scheduler is lost during a change, seconds to wait for another one.
        counts: adds the counts of lost schedulers to pages.
        """
        # Key: a method. Value: completes its page with the counts of lost schedulers.
        self._complete: dict[str, Callable[[Read], Awaitable[bytes]]] = {}
        if counts is not None:
            self._complete[_METRICS] = counts.complete_metrics
            self._complete[_STATISTICS] = counts.complete_statistics
        self._mesh = mesh
        self._timeout_s = timeout_s
        self._reconnect_s = reconnect_s
        self._whole_mesh_reads: dict[str, PacedReads[tuple[bytes, Render], bytes]] = {
            method: PacedReads(partial(self._read_now, method)) for method in _WHOLE_MESH_CALLS
        }

    async def call_bytes(self, method: str, request: bytes) -> bytes:
        """Return the serialised response to a serialised request. Loads have no time limit.

        Raises the scheduler's error, or Unavailable if the scheduler did not respond.
        """
        whole = _whole_mesh_request(method, request)
        return await (
            self._call_any(method, request)
            if whole is None
            else self.read_for_whole_mesh(method, whole)
        )

    async def read_for_whole_mesh(
        self, method: str, request: Message, render: Render = bytes
    ) -> bytes:
        """Return the rendered response to a call for the whole mesh, which names no model.

        One call is made at a time. Callers that come meanwhile share the next call.
        """
        return await self._whole_mesh_reads[method].get((request.SerializeToString(), render))

    async def _read_now(self, method: str, key: tuple[bytes, Render]) -> bytes:
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
        """Call a method with messages."""
        return response.FromString(await self.call_bytes(method, request.SerializeToString()))

    async def load(self, request: bytes) -> None:
        """Load a model as a RepositoryModelLoadRequest asks, without a time limit."""
        await self.call_bytes(_LOAD, request)

    async def server_ready(self) -> bool:
        """Return whether the scheduler is ready."""
        response = await self.call(
            "ServerReady", kserve_pb2.ServerReadyRequest(), kserve_pb2.ServerReadyResponse
        )
        return response.ready


def _whole_mesh_request(method: str, request: bytes) -> Message | None:
    """Return the request for a page of the mesh, without fields that do not matter, or None."""
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
        # The scheduler reports a request that cannot be parsed.
        pass
    return None
