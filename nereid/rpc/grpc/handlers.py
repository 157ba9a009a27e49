"""Table of a server's handlers, and the tasks in which coroutine handlers run."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from nereid.rpc.grpc.call import Call
from nereid.rpc.grpc.status import Status

if TYPE_CHECKING:
    from nereid.rpc.grpc.messages import AllocateBuffer

# The message is bytes, or a MessageBuffer if the allocator of its path made one.
UnaryHandler = Callable[[Call, Any], None]
AsyncUnaryHandler = Callable[[Call, bytes], Awaitable[bytes]]
StreamHandler = Callable[[Call], None]


@dataclass(frozen=True)
class Handlers:
    """Handlers of a server, by path. `unary` handlers are plain functions and must not block."""

    unary: Mapping[str, UnaryHandler] = field(default_factory=dict)
    async_unary: Mapping[str, AsyncUnaryHandler] = field(default_factory=dict)
    stream: Mapping[str, StreamHandler] = field(default_factory=dict)
    compressible: frozenset[str] = frozenset()
    # Maps a unary path to the allocator of buffers that receive its large messages.
    message_allocators: Mapping[str, AllocateBuffer] = field(default_factory=dict)
    # Called for each call from a socket, before its message. Raises RpcError to refuse the call.
    admit: Callable[[Call], None] | None = None


class Route:
    """Handler of one method. Exactly one of `unary`, `coroutine` and `stream` is set."""

    __slots__ = ("allocate", "compressible", "coroutine", "stream", "unary")

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
        # `None` means that messages are received as bytes.
        self.allocate: AllocateBuffer | None = None


def routes_of(handlers: Handlers) -> dict[str, Route]:
    """Return a route for each path in a table of handlers."""
    routes = {path: Route(unary=handler) for path, handler in handlers.unary.items()}
    routes.update({path: Route(coroutine=item) for path, item in handlers.async_unary.items()})
    routes.update({path: Route(stream=item) for path, item in handlers.stream.items()})
    for path in handlers.compressible:
        routes[path].compressible = True
    for path, allocate in handlers.message_allocators.items():
        routes[path].allocate = allocate
    return routes


class HandlerTasks:
    """Running tasks of coroutine handlers, kept so that they are not garbage-collected."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def spawn(self, call: Call, handler: AsyncUnaryHandler, message: bytes) -> None:
        """Run a coroutine handler in a task that replies. Cancelling the call cancels the task."""
        task = asyncio.get_running_loop().create_task(_run(call, handler, message))
        call.on_cancel = lambda: _cancel(task)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Cancel all tasks and wait for them."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()


async def _run(call: Call, handler: AsyncUnaryHandler, message: bytes) -> None:
    try:
        call.reply(await handler(call, message))
    except asyncio.CancelledError:
        call.fail(Status.CANCELLED, "the call was cancelled")
        raise
    except Exception as error:
        call.fail_with(error)
