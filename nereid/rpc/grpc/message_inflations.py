"""Messages of a server's calls that are inflated off the event loop, and handed back to their
connections.
"""

from __future__ import annotations

import asyncio
import zlib
from typing import TYPE_CHECKING, Any, Final

from nereid.rpc.grpc.compression import inflated_message, inflation_error
from nereid.rpc.grpc.status import RpcError
from nereid.rpc.net.inflation import InflatedTooLargeError

if TYPE_CHECKING:
    from nereid.rpc.grpc.server_connection import ServerCall
    from nereid.rpc.net.inflation import Inflation, InflationQueue

# What an allocator sees of a message.
_BEGINNING_BYTES: Final = 16384


class MessageInflations:
    """Those that run. A call that ends stops its message's at the next slice."""

    def __init__(self, queue: InflationQueue) -> None:
        self._queue = queue
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, call: ServerCall, inflation: Inflation) -> None:
        """Inflate a message of call, then deliver it."""
        task = asyncio.get_running_loop().create_task(self._run(call, inflation))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def close(self) -> None:
        """Deliver no more."""
        for task in self._tasks:
            task.cancel()

    async def _run(self, call: ServerCall, inflation: Inflation) -> None:
        result: Any
        try:
            await self._queue.run(call.peer, inflation, call.hold)
            result = inflated_message(inflation)
            allocate = None if call.route is None else call.route.allocate
            buffer = allocate and allocate(len(result), memoryview(result)[:_BEGINNING_BYTES])
            if buffer is not None:
                await self._queue.copy(result, buffer.view)
                result = buffer
        except (zlib.error, InflatedTooLargeError) as error:
            result = inflation_error(inflation, error)
        except RpcError as error:
            # Its traceback would keep this frame, and with it the message.
            result = error.with_traceback(None)
        call.connection.on_inflated(call, result)
