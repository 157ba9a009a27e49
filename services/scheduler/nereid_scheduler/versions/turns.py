"""When a model version takes its next step: now, at the end of the loop's turn, or at a time."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Final

from nereid_scheduler.core.timer import RearmableTimer

if TYPE_CHECKING:
    from collections.abc import Callable

_now_ns: Final = time.monotonic_ns


class Stepper(ABC):
    """Interface of what takes steps: a model version."""

    @abstractmethod
    def take_step(self, now_ns: int) -> int | None:
        """Take a step; return when the next one is due, if nothing comes before."""

    @abstractmethod
    def expire(self, now_ns: int) -> None:
        """Expire what has waited too long. Called before a step that was due or ends a turn."""


class Turns:
    """Turns of one version. Create it inside the event loop."""

    def __init__(self, stepper: Stepper) -> None:
        self._stepper = stepper
        self._loop = asyncio.get_running_loop()
        self._due = False
        self._timer = RearmableTimer(self._on_timer)

    def step(self, now_ns: int) -> None:
        """Take a step now."""
        if self._timer.at_ns <= now_ns:
            self._stepper.expire(now_ns)
        self._timer.arm(self._stepper.take_step(now_ns), now_ns)

    def wake(self) -> None:
        """Take a step at the end of this turn of the event loop."""
        if not self._due:
            self._due = True
            self._loop.call_soon(self._on_turn)

    def call_soon(self, function: Callable[..., None], *arguments: Any) -> None:
        """Call a function in the next turn of the event loop."""
        self._loop.call_soon(function, *arguments)

    def close(self) -> None:
        """Cancel the timer."""
        self._timer.cancel()

    def _on_turn(self) -> None:
        self._due = False
        now_ns = _now_ns()
        self._stepper.expire(now_ns)
        self._timer.arm(self._stepper.take_step(now_ns), now_ns)

    def _on_timer(self) -> None:
        if not self._due:
            self._on_turn()
