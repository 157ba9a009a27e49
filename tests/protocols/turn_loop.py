"""An event loop whose turns a world takes: callbacks run when it says, and no time passes."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class TurnLoop:
    """Timers never fire: that they do is an action of the world."""

    def __init__(self) -> None:
        self._ready: deque[asyncio.Handle] = deque()
        # It has what is used of one.
        self._loop = cast("asyncio.AbstractEventLoop", self)

    def time(self) -> float:
        return 0.0

    def get_debug(self) -> bool:
        return False

    def call_soon(
        self, callback: Callable[..., object], *args: Any, context: Any = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self._loop, context)
        self._ready.append(handle)
        return handle

    def call_later(
        self, delay: float, callback: Callable[..., object], *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        return asyncio.TimerHandle(delay, callback, args, self._loop, context)

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Do nothing: no timer is kept."""

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        raise context["exception"]

    @contextmanager
    def running(self) -> Iterator[None]:
        """Run what is inside as a callback of this loop, and then all that is due."""
        asyncio._set_running_loop(self._loop)
        try:
            yield
            while self._ready:
                self._ready.popleft()._run()
        finally:
            asyncio._set_running_loop(None)
