"""From a complete request to its handler, and from a handler's exception to a status.

Shared by every engine. Exceptions other than RpcError become INTERNAL with a fixed text; the log
has the rest.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from nereid.rpc.grpc.status import RpcError, Status

if TYPE_CHECKING:
    from collections.abc import Callable

    from nereid.rpc.grpc.call import (
        AllocateBuffer,
        AsyncUnaryHandler,
        Call,
        Handlers,
        StreamHandler,
        UnaryHandler,
    )

log = logging.getLogger("nereid.rpc")

INTERNAL_TEXT = "internal error"


class Route:
    """One method's handler; exactly one of the three is set."""

    __slots__ = ("compressible", "coroutine", "room", "stream", "unary")

    def __init__(
        self,
        unary: UnaryHandler | None = None,
        coroutine: AsyncUnaryHandler | None = None,
        stream: StreamHandler | None = None,
    ) -> None:
        self.unary = unary
        self.coroutine = coroutine
        self.stream = stream
        self.compressible = False
        # Where its large messages are put together; None: in bytes.
        self.room: AllocateBuffer | None = None


def routes_of(handlers: Handlers) -> dict[str, Route]:
    routes = {path: Route(unary=handler) for path, handler in handlers.unary.items()}
    routes.update({path: Route(coroutine=item) for path, item in handlers.async_unary.items()})
    routes.update({path: Route(stream=item) for path, item in handlers.stream.items()})
    for path in handlers.compressible:
        routes[path].compressible = True
    for path, room in handlers.rooms.items():
        routes[path].room = room
    return routes


def report(call: Call, error: Exception) -> None:
    """Answer a call whose handler raised."""
    if isinstance(error, RpcError):
        call.fail(error.status, error.message, error.trailers)
        return
    log.error("handler of %s failed", call.path, exc_info=error)
    call.fail(Status.INTERNAL, INTERNAL_TEXT)


def guarded(call: Call, callback: Callable[..., None], *args: object) -> None:
    """Run a handler's callback; what it raises ends the call."""
    try:
        callback(*args)
    except Exception as error:
        report(call, error)


class Tasks:
    """Runs coroutine handlers, and keeps their tasks from being collected."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def spawn(self, call: Call, handler: AsyncUnaryHandler, message: bytes) -> None:
        task = asyncio.get_running_loop().create_task(_response(call, handler, message))
        call.on_cancel = lambda: _cancel(task)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()


async def _response(call: Call, handler: AsyncUnaryHandler, message: bytes) -> None:
    try:
        call.reply(await handler(call, message))
    except asyncio.CancelledError:
        call.fail(Status.CANCELLED, "the call was cancelled")
        raise
    except Exception as error:
        report(call, error)
