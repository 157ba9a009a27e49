"""Health service grpc.health.v1. As on Triton, Check means ServerReady for any service name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from grpc_health.v1 import health_pb2

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

_STATUS = health_pb2.HealthCheckResponse
_SERVING: Final[bytes] = _STATUS(status=_STATUS.SERVING).SerializeToString()
_NOT_SERVING: Final[bytes] = _STATUS(status=_STATUS.NOT_SERVING).SerializeToString()


class Health:
    """Handlers of the health service."""

    def __init__(self, ready: Callable[[], Awaitable[bool]]) -> None:
        self._ready = ready

    async def check(self, _message: bytes) -> bytes:
        """Return a serialised HealthCheckResponse."""
        return _SERVING if await self._ready() else _NOT_SERVING
