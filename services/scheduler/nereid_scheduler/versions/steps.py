"""The scheduler's loop: an input is recorded first, then the versions that it concerns take steps.

begin_input     a gateway's frame, an instance's message, the end of a turn or a timer
requests are queued, executions end; versions that can act ask for a step
take_steps      these versions expire, plan and send
end_input       likewise, for what was asked since, such as steps of ensembles
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Final

from nereid_scheduler.core.timer import RearmableTimer

if TYPE_CHECKING:
    from collections.abc import Callable

_now_ns: Final = time.monotonic_ns


class Steps:
    """Steps of all versions of one scheduler."""

    def __init__(self) -> None:
        self._inputs = 0
        self._due: list[Turns] = []

    def begin_input(self) -> None:
        """Let versions wait with their steps until the input is recorded. Inputs may nest."""
        self._inputs += 1

    def end_input(self) -> None:
        """Let versions take the steps that they have asked for. Always call it, after any error."""
        if self._due and self._inputs == 1:
            try:
                self.take_steps()
            finally:
                self._inputs -= 1
        else:
            self._inputs -= 1

    def take_steps(self) -> None:
        """Let versions take the steps that they have asked for, before the input ends."""
        due = self._due
        # A step of an ensemble lets other versions ask for theirs.
        while due:
            due.pop(0).step(_now_ns())

    def ask(self, turns: Turns) -> bool:
        """Let a version take a step after the input; return False if there is none."""
        if not self._inputs:
            return False
        self._due.append(turns)
        return True


class Stepper(ABC):
    """Interface of what takes steps: a model version."""

    @abstractmethod
    def take_step(self, now_ns: int) -> int | None:
        """Take a step; return when the next one is due, if nothing comes before."""

    @abstractmethod
    def expire(self, now_ns: int) -> None:
        """Expire what has waited too long. Called before a step that was due or ends a turn."""


class Turns:
    """Steps of one version. Create it inside the event loop."""

    def __init__(self, stepper: Stepper, steps: Steps) -> None:
        self._stepper = stepper
        self._steps = steps
        self._loop = asyncio.get_running_loop()
        # True if a step was asked for: after the input, or at the end of the turn.
        self._after_input = False
        self._at_end = False
        self._timer = RearmableTimer(self._on_timer)

    def ask(self) -> None:
        """Take a step when the present input is recorded; without one, at the end of the turn."""
        if self._after_input:
            return
        if self._steps.ask(self):
            self._after_input = True
        else:
            self.wake()

    def wake(self) -> None:
        """Take a step at the end of this turn of the event loop."""
        if not self._at_end:
            self._at_end = True
            self._loop.call_soon(self._on_turn)

    def call_soon(self, function: Callable[..., None], *arguments: Any) -> None:
        """Call a function in the next turn of the event loop."""
        self._loop.call_soon(function, *arguments)

    def step(self, now_ns: int) -> None:
        """Take a step now. Only Steps may call this."""
        self._after_input = False
        if self._timer.at_ns <= now_ns:
            self._stepper.expire(now_ns)
        self._timer.arm(self._stepper.take_step(now_ns), now_ns)

    def close(self) -> None:
        """Cancel the timer."""
        self._timer.cancel()

    def _on_turn(self) -> None:
        self._at_end = False
        now_ns = _now_ns()
        self._steps.begin_input()
        try:
            self._stepper.expire(now_ns)
            self._timer.arm(self._stepper.take_step(now_ns), now_ns)
        finally:
            self._steps.end_input()

    def _on_timer(self) -> None:
        if not self._at_end:
            self._on_turn()
