"""Runs blocking calls one after another in a thread; if it hangs, the process can still end.

At its end, the interpreter waits for the threads of the standard library's executors.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    Result = TypeVar("Result")


class BlockingThread:
    """A thread that starts with the first call."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    async def run(self, function: Callable[..., Result], *arguments: Any) -> Result:
        """Return a call's result or raise its error. If `run` is cancelled, the call goes on."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Result] = loop.create_future()

        def complete(result: Result | None, error: BaseException | None) -> None:
            if done.done():
                return
            if error is None:
                done.set_result(result)  # type: ignore[arg-type]
            else:
                done.set_exception(error)

        def call() -> None:
            result, error = None, None
            try:
                result = function(*arguments)
            except BaseException as raised:
                error = raised
            with contextlib.suppress(RuntimeError):  # The loop has ended meanwhile.
                loop.call_soon_threadsafe(complete, result, error)

        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        self._calls.put(call)
        return await done

    def close(self) -> None:
        """Let the thread end after the calls that it has been given."""
        self._calls.put(None)

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            call()
