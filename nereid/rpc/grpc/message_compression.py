"""Compression and inflation of a server's messages outside the event loop."""

from __future__ import annotations

import asyncio
import operator
import zlib
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from nereid.rpc.grpc.compression import inflated_message, inflation_error
from nereid.rpc.grpc.status import RpcError
from nereid.rpc.net.inflation import InflatedTooLargeError

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from nereid.rpc.grpc.messages import MessageBuffer
    from nereid.rpc.grpc.server_connection import CompressingCall, ServerCall
    from nereid.rpc.net.inflation import Inflation
    from nereid.rpc.net.zlib_queue import ZlibQueue

# An allocator sees this many bytes. The message is copied to the buffer in slices, because copying
# holds the interpreter's lock.
_FIRST_PIECE_BYTES: Final = 16_384
_SLICE_BYTES: Final = 1 << 20


class MessageCompression:
    """Tasks that inflate or compress messages. Work for an ended call stops after a slice."""

    def __init__(self, queue: ZlibQueue) -> None:
        self._queue = queue
        self._tasks: set[asyncio.Task[None]] = set()

    def inflate(self, call: ServerCall, inflation: Inflation) -> None:
        """Inflate a call's message in a task, then deliver it to the call's connection."""
        self._start(self._inflate(call, inflation))

    def deflate(self, call: CompressingCall) -> None:
        """Compress a call's waiting messages in a task, and send each one."""
        self._start(self._deflate(call))

    def close(self) -> None:
        """Cancel all tasks. Nothing is delivered after this."""
        for task in self._tasks:
            task.cancel()

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _deflate(self, call: CompressingCall) -> None:
        while (deflation := call.begin_deflation()) is not None:
            while not deflation.done and call.waiting:
                await self._queue.run_slice(call.peer, deflation.deflate)
            if call.waiting:
                call.send_deflated(deflation.content())

    async def _inflate(self, call: ServerCall, inflation: Inflation) -> None:
        result: bytes | MessageBuffer | RpcError
        try:
            await self._queue.inflate(call.peer, inflation, call.hold)
            result = await self._in_buffer(call, inflated_message(inflation))
        except (zlib.error, InflatedTooLargeError) as error:
            result = inflation_error(inflation, error)
        except RpcError as error:
            # The traceback would keep this frame and the message in memory.
            result = error.with_traceback(None)
        call.connection.on_inflated(call, result)

    async def _in_buffer(self, call: ServerCall, message: bytes) -> bytes | MessageBuffer:
        allocate = call.connection.allocator_of(call)
        view = memoryview(message)
        buffer = None if allocate is None else allocate(len(view), view[:_FIRST_PIECE_BYTES])
        if buffer is None:
            return message
        for at in range(0, len(view), _SLICE_BYTES):
            piece = slice(at, at + _SLICE_BYTES)
            await self._queue.run_slice(
                call.peer, partial(operator.setitem, buffer.view, piece, view[piece])
            )
        return buffer
