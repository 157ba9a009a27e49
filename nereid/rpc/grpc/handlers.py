"""A server's table of handlers, and how coroutines among them are run. Shared by both engines."""

# layout: not compiled, coroutines, in control calls alone

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from nereid.rpc.grpc.call import Call
from nereid.rpc.grpc.status import Status

if TYPE_CHECKING:
    from nereid.rpc.grpc.messages import AllocateBuffer

# The message is a MessageBuffer instead of bytes where its path has an allocator that made one.
UnaryHandler = Callable[[Call, Any], None]
AsyncUnaryHandler = Callable[[Call, bytes], Awaitable[bytes]]
StreamHandler = Callable[[Call], None]


@dataclass(frozen=True)
class Handlers:
    """Methods by path. `unary` handlers are plain functions and must not block; `async_unary` run
    as tasks.
    """

    unary: Mapping[str, UnaryHandler] = field(default_factory=dict)
    async_unary: Mapping[str, AsyncUnaryHandler] = field(default_factory=dict)
    stream: Mapping[str, StreamHandler] = field(default_factory=dict)
    # Methods whose responses are worth compressing, where the server's options ask for it.
    compressible: frozenset[str] = frozenset()
    # For unary paths whose large messages shall not be put together in bytes.
    message_allocators: Mapping[str, AllocateBuffer] = field(default_factory=dict)
    # Called with each call that arrives at a socket once its headers are there, and before its
    # message is: raises RpcError to refuse it.
    admit: Callable[[Call], None] | None = None


class Route:
    """One method's handler; exactly one of the three is set."""

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
        # Where its large messages are put together; None: in bytes.
        self.allocate: AllocateBuffer | None = None


def routes_of(handlers: Handlers) -> dict[str, Route]:
    routes = {path: Route(unary=handler) for path, handler in handlers.unary.items()}
    routes.update({path: Route(coroutine=item) for path, item in handlers.async_unary.items()})
    routes.update({path: Route(stream=item) for path, item in handlers.stream.items()})
    for path in handlers.compressible:
        routes[path].compressible = True
    for path, allocate in handlers.message_allocators.items():
        routes[path].allocate = allocate
    return routes


class HandlerTasks:
    """Runs coroutine handlers, and keeps their tasks from being collected."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def spawn(self, call: Call, handler: AsyncUnaryHandler, message: bytes) -> None:
        task = asyncio.get_running_loop().create_task(_run(call, handler, message))
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


async def _run(call: Call, handler: AsyncUnaryHandler, message: bytes) -> None:
    try:
        call.reply(await handler(call, message))
    except asyncio.CancelledError:
        call.fail(Status.CANCELLED, "the call was cancelled")
        raise
    except Exception as error:
        call.fail_with(error)
