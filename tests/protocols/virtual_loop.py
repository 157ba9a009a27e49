"""An event loop without a clock: its turns and its timers are steps that the explorer orders.

Product code that asks for the running loop gets this one. It has what such code uses, nothing else.
"""

from __future__ import annotations

import asyncio
from collections import deque
from concurrent.futures import Executor
from functools import partial
from typing import TYPE_CHECKING, Any

from tests.protocols.explorer import Action

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class VirtualLoop:
    """One process's loop."""

    def __init__(self, name: str) -> None:
        self.name = name
        # It stands for an AbstractEventLoop without being one: most of that is not used.
        self._self: Any = self
        self.now_s = 0.0
        self.ready: deque[asyncio.Handle] = deque()
        self.timers: list[asyncio.TimerHandle] = []

    def run(self, callback: Callable[..., Any], *args: Any) -> Any:
        """Call something of this process's; what it puts off is done in a later turn."""
        before = asyncio._get_running_loop()
        asyncio._set_running_loop(self._self)
        try:
            return callback(*args)
        finally:
            asyncio._set_running_loop(before)

    def settle(self, callback: Callable[..., Any], *args: Any) -> None:
        """As run(), and then turns until none is due."""
        self.run(callback, *args)
        while self.ready:
            self._turn()

    def turns(self) -> Iterator[Action]:
        """The next turn, if anything waits for it."""
        if any(not each.cancelled() for each in self.ready):
            yield Action(self.name, f"{self.name}: a turn", self._turn)

    def timeouts(self) -> Iterator[Action]:
        """The timers, each of which can fire now."""
        self.timers = [each for each in self.timers if not each.cancelled()]
        # What jitter adds to short pauses must not change their order.
        for timer in sorted(self.timers, key=lambda each: round(each.when())):
            name = getattr(getattr(timer, "_callback", None), "__qualname__", "timer")
            yield Action(
                f"{self.name}'s timers", f"{self.name}: {name}", partial(self._fire, timer)
            )

    def _turn(self) -> None:
        due, self.ready = self.ready, deque()
        for handle in due:
            if not handle.cancelled():
                self.run(handle._run)

    def _fire(self, timer: asyncio.TimerHandle) -> None:
        self.timers.remove(timer)
        self.now_s = max(self.now_s, timer.when())
        self.run(timer._run)

    # ---- what product code uses

    def time(self) -> float:
        return self.now_s

    def call_soon(self, callback: Any, *args: Any, context: Any = None) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self._self, context)
        self.ready.append(handle)
        return handle

    call_soon_threadsafe = call_soon

    def call_later(
        self, delay: float, callback: Any, *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self.now_s + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Any, *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        timer = asyncio.TimerHandle(when, callback, args, self._self, context)
        self.timers.append(timer)
        return timer

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self._self)

    def run_in_executor(
        self, executor: Executor | None, func: Any, *args: Any
    ) -> asyncio.Future[Any]:
        """The thread is done by the next turn."""
        future = self.create_future()
        future.set_result(func(*args))
        return future

    def get_debug(self) -> bool:
        return False

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        raise AssertionError(context["message"]) from context.get("exception")

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Do nothing: timeouts() drops it."""
