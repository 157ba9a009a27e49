"""A server's table of handlers, and the tasks that run coroutine handlers.

Shared by both engines.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from nereid.rpc.grpc.call import Call
from nereid.rpc.grpc.status import Status

if TYPE_CHECKING:
    from nereid.rpc.grpc.messages import AllocateBuffer

# A unary handler gets a MessageBuffer instead of bytes if its path's allocator made one.
UnaryHandler = Callable[[Call, Any], None]
AsyncUnaryHandler = Callable[[Call, bytes], Awaitable[bytes]]
StreamHandler = Callable[[Call], None]


@dataclass(frozen=True)
class Handlers:
    """Handlers by path.

    `unary` handlers are plain functions and must not block; `async_unary` handlers run as tasks.
    """

    unary: Mapping[str, UnaryHandler] = field(default_factory=dict)
    async_unary: Mapping[str, AsyncUnaryHandler] = field(default_factory=dict)
    stream: Mapping[str, StreamHandler] = field(default_factory=dict)
    # Paths whose responses are worth compressing, if the server's options ask for compression.
    compressible: frozenset[str] = frozenset()
    # Allocators, by unary path, of buffers for large messages that should not be put together as
    # bytes.
    message_allocators: Mapping[str, AllocateBuffer] = field(default_factory=dict)
    # Check of each call that arrives at a socket, after its headers and before its message. It
    # raises RpcError to refuse the call.
    admit: Callable[[Call], None] | None = None


class Route:
    """Handler of one method; exactly one of `unary`, `coroutine` and `stream` is set."""

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
        # Allocator for large messages; `None` means that they are put together as bytes.
        self.allocate: AllocateBuffer | None = None


def routes_of(handlers: Handlers) -> dict[str, Route]:
    """Return one route for each path of a table of handlers."""
    routes = {path: Route(unary=handler) for path, handler in handlers.unary.items()}
    routes.update({path: Route(coroutine=item) for path, item in handlers.async_unary.items()})
    routes.update({path: Route(stream=item) for path, item in handlers.stream.items()})
    for path in handlers.compressible:
        routes[path].compressible = True
    for path, allocate in handlers.message_allocators.items():
        routes[path].allocate = allocate
    return routes


class HandlerTasks:
    """Running coroutine handlers; keeps their tasks from being garbage-collected."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def spawn(self, call: Call, handler: AsyncUnaryHandler, message: bytes) -> None:
        """Run a coroutine handler as a task that replies to the call; cancelled with the call."""
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
