"""Asyncio tasks of HTTP calls that cannot be responded to at once."""

# layout: not compiled, closures, in control calls alone

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from nereid.core.errors import INTERNAL_MESSAGE, Internal, NereidError, http_status
from nereid_gateway.core.retry_hints import retry_line

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from nereid_gateway.server.call import HttpCall

_log = logging.getLogger(__name__)


class CallTasks:
    """The tasks that are running. A task is cancelled if the client of its call disconnects."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def spawn(self, call: HttpCall, work: Coroutine[Any, Any, None]) -> None:
        """Run work as a task that responds to call. An exception becomes an error response."""
        task = asyncio.get_running_loop().create_task(_run(call, work))
        self._tasks.add(task)

        def on_done(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            # A task cancelled before its start never ran its coroutine. Closing the coroutine
            # avoids a warning.
            work.close()

        task.add_done_callback(on_done)
        if not call.done:

            def cancel() -> None:
                task.cancel()

            call.on_cancel = cancel


async def _run(call: HttpCall, work: Coroutine[Any, Any, None]) -> None:
    try:
        await work
    except NereidError as error:
        call.fail(http_status(error.code), error.message, extra=retry_line(error))
    except Exception:
        _log.exception("HTTP request failed: target=%r", call.target)
        call.fail(http_status(Internal.code), INTERNAL_MESSAGE)
