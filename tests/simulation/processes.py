"""The processes of a simulated mesh: each can stand still, end, and come back as another one.

They share one event loop, in virtual time. What a process schedules belongs to it: while it stands
still that waits, timers and messages alike, and when it goes on all of it comes at once; once the
process has ended nothing of it happens any more, as after SIGKILL.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import math
import random
from collections import deque
from typing import TYPE_CHECKING, Any

from benchmarks.simulation.virtual_time import VirtualLoop

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from benchmarks.simulation.virtual_time import Clock

# What runs in a thread takes so long: it reads files.
_THREAD_S = (0.0002, 0.003)
# Tasks that have ended are forgotten when there are so many.
_MAX_TASKS = 512
# In the contexts of tasks.
_PROCESS: contextvars.ContextVar[Process] = contextvars.ContextVar("process")


class Process:
    """One process of the mesh, from its start to its end."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.alive = True
        self.stands_still = False
        # What was due while it stood still, in the order in which it was due.
        self.waiting: list[_Due] = []
        # Some of them have ended.
        self.tasks: list[asyncio.Task[Any]] = []
        self._most_tasks = _MAX_TASKS

    def add_task(self, task: asyncio.Task[Any]) -> None:
        """It runs in this process."""
        self.tasks.append(task)
        if len(self.tasks) > self._most_tasks:
            self.tasks = [each for each in self.tasks if not each.done()]
            self._most_tasks = 2 * len(self.tasks) + _MAX_TASKS

    def __repr__(self) -> str:
        return self.name


class _Due:
    """A callback of a process; an asyncio.TimerHandle, as far as anybody asks."""

    __slots__ = ("_args", "_callback", "_cancelled", "_context", "_when", "is_message", "process")

    def __init__(
        self,
        process: Process,
        callback: Callable[..., Any],
        args: tuple[Any, ...],
        context: contextvars.Context | None,
        when: float = 0.0,
    ) -> None:
        self.process = process
        self._callback: Callable[..., Any] | None = callback
        self._args = args
        self._context = context
        self._when = when
        self._cancelled = False
        # It came over the network, rather than from the process itself.
        self.is_message = False

    def cancel(self) -> None:
        self._cancelled = True
        self._callback = None
        self._args = ()

    def cancelled(self) -> bool:
        return self._cancelled

    def when(self) -> float:
        return self._when

    def run(self, loop: MeshLoop) -> None:
        callback = self._callback
        if callback is None:
            return
        try:
            if self._context is None:
                callback(*self._args)
            else:
                self._context.run(callback, *self._args)
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:
            context = {"message": f"exception in {callback!r}", "exception": error}
            loop.call_exception_handler(context)


class MeshLoop(VirtualLoop):
    """The event loop of all processes. process: the one whose callback runs."""

    def __init__(self, clock: Clock, choices: random.Random) -> None:
        self._due: deque[_Due] = deque()
        self._timers: list[tuple[float, int, _Due]] = []
        self._count = 0
        self._clock = clock
        self._choices = choices
        # Kept with their tasks, which would run their `finally` blocks when they are collected.
        self._killed: list[Process] = []
        self.outside = self.process = Process("outside")
        super().__init__(clock)

    # ---- processes

    def run_in(self, process: Process, callback: Callable[..., Any], *args: Any) -> Any:
        """Call it now, as a part of a process."""
        before, self.process = self.process, process
        try:
            return callback(*args)
        finally:
            self.process = before

    def spawn(self, process: Process, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """A task of a process."""
        task: asyncio.Task[Any] = self.run_in(process, self.create_task, work)
        return task

    def deliver_at(self, when: float, process: Process, callback: Callable[[], Any]) -> None:
        """A message arrives at a process."""
        due = _Due(process, callback, (), None, when)
        due.is_message = True
        self._count += 1
        heapq.heappush(self._timers, (when, self._count, due))

    def stop_process(self, process: Process) -> None:
        """It stands still from now on, as after SIGSTOP."""
        process.stands_still = True

    def resume(self, process: Process) -> None:
        """It goes on. What is in its sockets it reads before its timers, or after some of them."""
        process.stands_still = False
        waiting, process.waiting = process.waiting, []
        if self._choices.random() < 0.7:
            waiting.sort(key=lambda each: not each.is_message)
        self._due.extend(waiting)

    def kill(self, process: Process) -> None:
        """Nothing of it happens any more."""
        process.alive = False
        process.waiting.clear()
        self._killed.append(process)

    # ---- asyncio.AbstractEventLoop

    def time(self) -> float:
        return self._clock.now_ns / 1e9

    def call_soon(  # type: ignore[override]
        self,
        callback: Callable[..., Any],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> Any:
        # A task belongs to its process, whoever wakes it.
        process = self.process if context is None else context.get(_PROCESS, self.process)
        due = _Due(process, callback, args, context)
        self._due.append(due)
        return due

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_later(  # type: ignore[override]
        self,
        delay: float,
        callback: Callable[..., Any],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> Any:
        return self.call_at(self._clock.now_ns / 1e9 + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self,
        when: float,
        callback: Callable[..., Any],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> Any:
        due = _Due(self.process, callback, args, context, when)
        self._count += 1
        heapq.heappush(self._timers, (when, self._count, due))
        return due

    def create_task(self, coro: Any, **options: Any) -> Any:
        context = options.setdefault("context", contextvars.copy_context())
        context.run(_PROCESS.set, self.process)
        task = super().create_task(coro, **options)
        self.process.add_task(task)
        return task

    def run_in_executor(  # type: ignore[override]
        self, executor: object, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        """There are no threads: it is called in one piece, a moment later."""
        future = self.create_future()

        def run() -> None:
            if future.cancelled():
                return
            try:
                result = func(*args)
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(result)

        self.call_later(self._choices.uniform(*_THREAD_S), run)
        return future

    def _run_once(self) -> None:
        due, timers = self._due, self._timers
        if not due:
            while timers and timers[0][2]._cancelled:
                heapq.heappop(timers)
            if not timers:
                raise RuntimeError("nothing is left to happen, and the simulation is not over")
            first = timers[0][0]
            now_ns = max(self._clock.now_ns, math.ceil(first * 1e9))
            # Who sleeps until then has slept until then, whatever the rounding.
            while now_ns / 1e9 < first:
                now_ns += 1
            self._clock.now_ns = now_ns
            now = now_ns / 1e9
            while timers and timers[0][0] <= now:
                due.append(heapq.heappop(timers)[2])
        for _ in range(len(due)):
            each = due.popleft()
            if each._cancelled:
                continue
            process = each.process
            if process.stands_still:
                process.waiting.append(each)
            elif process.alive:
                self.process = process
                each.run(self)
        self.process = self.outside
