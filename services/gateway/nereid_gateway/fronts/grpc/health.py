"""Health service grpc.health.v1, as its specification has it.

https://github.com/grpc/grpc/blob/master/doc/health-checking.md
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Final

from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2

from nereid.core.errors import Internal, NotFound
from nereid.rpc import Status
from nereid_gateway.core.grpc_methods import HEALTH_SERVICE, INFERENCE_SERVICE
from nereid_gateway.plane.decoding.limits import MAX_CONTROL_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from typing import Any

    from nereid.rpc import Call

_STATUS = health_pb2.HealthCheckResponse
_SERVING: Final[bytes] = _STATUS(status=_STATUS.SERVING).SerializeToString()
_NOT_SERVING: Final[bytes] = _STATUS(status=_STATUS.NOT_SERVING).SerializeToString()
_UNKNOWN: Final[bytes] = _STATUS(status=_STATUS.SERVICE_UNKNOWN).SerializeToString()
# The empty name is the whole server's.
_SERVICES: Final = frozenset({"", INFERENCE_SERVICE, HEALTH_SERVICE})
_INTERVAL_S: Final = 0.5


class Health:
    """Handlers of the health service: a service is SERVING while the server is ready."""

    def __init__(
        self,
        ready: Callable[[], Coroutine[Any, Any, bool]],
        draining: Callable[[], bool],
        interval_s: float = _INTERVAL_S,
    ) -> None:
        """ready: whether the server is ready. interval_s: between two looks for the watchers."""
        self._ready = ready
        self._draining = draining
        self._interval_s = interval_s
        # Watchers by the status that each was sent last.
        self._watchers: dict[Call, bytes] = {}
        self._looking: asyncio.Task[None] | None = None
        self._watcher_came = asyncio.Event()

    async def check(self, message: bytes) -> bytes:
        """Return a serialised HealthCheckResponse. An unknown service raises NotFound."""
        service = _service(message)
        if service not in _SERVICES:
            raise NotFound(f"unknown service '{service}'")
        return await self._status()

    def watch(self, call: Call) -> None:
        """Send a service's status and its changes. The stream ends when the server drains."""

        def on_message(message: bytes) -> None:
            call.on_message = call.on_half_close = None
            try:
                known = _service(message) in _SERVICES
            except Internal as error:
                call.fail(Status.INTERNAL, error.message)
                return
            self._watchers[call] = b"" if known else _UNKNOWN
            call.on_cancel = lambda: self._drop(call)
            if not known:
                call.send(_UNKNOWN, at_once=True)
            self._watcher_came.set()
            if self._looking is None:
                self._looking = asyncio.get_running_loop().create_task(self._look())

        call.on_message = on_message
        call.on_half_close = lambda: call.fail(Status.INTERNAL, "the call has no message")

    def _drop(self, call: Call) -> None:
        self._watchers.pop(call, None)

    async def _status(self) -> bytes:
        return _SERVING if await self._ready() else _NOT_SERVING

    async def _look(self) -> None:
        while self._watchers:
            self._watcher_came.clear()
            status = await self._status()
            draining = self._draining()
            for call, sent in list(self._watchers.items()):
                if sent not in (_UNKNOWN, status):
                    self._watchers[call] = status
                    call.send(status, at_once=True)
                if draining:
                    self._drop(call)
                    call.finish()
            if self._watchers:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._watcher_came.wait(), self._interval_s)
        self._looking = None


def _service(message: bytes) -> str:
    if len(message) > MAX_CONTROL_BYTES:
        raise Internal("the message is too large")
    try:
        return str(health_pb2.HealthCheckRequest.FromString(message).service)
    except DecodeError as error:
        raise Internal("Unable to parse request") from error
