"""Runs descriptions of model files in threads: a few at a time, each for a limited time.

A slow description no longer counts towards the limit, and is abandoned after its timeout. A thread
that never returns is left behind; the number of threads is limited too.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nereid.core.errors import Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable

    from nereid.pb import nereid_pb2 as pb

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class DescriptionLimits:
    """Limits on the descriptions that one executor runs.

    concurrent: counted descriptions that may run at the same time. reading_s, code_s: seconds until
    a description stops to count, if it reads a file or runs the model's code. threads: descriptions
    that may run in total.
    """

    timeout_s: float = 120.0
    concurrent: int = 4
    reading_s: float = 10.0
    code_s: float = 1.0
    threads: int = 64


@dataclass(eq=False)
class _Run:
    model: str
    runs_code: bool
    work: Callable[[], pb.Described]
    outcome: asyncio.Future[pb.Described]
    counts: bool = True
    timers: tuple[asyncio.TimerHandle, ...] = ()


class DescriptionRuns:
    """The descriptions that one executor runs. Used on the executor's event loop."""

    def __init__(self, limits: DescriptionLimits) -> None:
        self.limits = limits
        self._waiting: deque[_Run] = deque()
        self._running: set[_Run] = set()

    def submit(
        self, model: str, work: Callable[[], pb.Described], *, runs_code: bool
    ) -> asyncio.Future[pb.Described]:
        """Call `work` in a thread. The future fails with Unavailable if the call takes too long."""
        outcome: asyncio.Future[pb.Described] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Run(model, runs_code, work, outcome))
        self._begin_waiting()
        return outcome

    def close(self) -> None:
        """Cancel the descriptions that wait for their turn."""
        for run in self._waiting:
            run.outcome.cancel()
        self._waiting.clear()

    def _begin_waiting(self) -> None:
        limits = self.limits
        while self._waiting and sum(run.counts for run in self._running) < limits.concurrent:
            run = self._waiting.popleft()
            if len(self._running) < limits.threads:
                self._begin(run)
                continue
            run.outcome.set_exception(
                Unavailable(
                    f"model '{run.model}' cannot be described: {len(self._running)} other models"
                    " take too long to be described by this executor; unload them, or restart it"
                )
            )

    def _begin(self, run: _Run) -> None:
        loop, limits = asyncio.get_running_loop(), self.limits
        self._running.add(run)
        slow_s = limits.code_s if run.runs_code else limits.reading_s
        run.timers = (
            loop.call_later(slow_s, self._on_slow, run),
            loop.call_later(limits.timeout_s, self._on_timeout, run),
        )

        def execute() -> None:
            described: pb.Described | None = None
            error: Exception | None = None
            try:
                described = run.work()
            except Exception as raised:
                error = raised
            try:
                loop.call_soon_threadsafe(self._on_end, run, described, error)
            except RuntimeError:
                _log.debug("a description outlived the event loop: model=%s", run.model)

        # The interpreter's exit does not wait for daemon threads.
        threading.Thread(target=execute, name=f"describe-{run.model}", daemon=True).start()

    def _on_slow(self, run: _Run) -> None:
        run.counts = False
        self._begin_waiting()

    def _on_timeout(self, run: _Run) -> None:
        run.counts = False
        what = "its own code" if run.runs_code else "its file"
        run.outcome.set_exception(
            Unavailable(
                f"model '{run.model}' was not described within {self.limits.timeout_s:g} s: {what}"
                " takes too long; write the configuration of all its inputs and outputs, or raise"
                " --model-describe-timeout-secs"
            )
        )

    def _on_end(self, run: _Run, described: pb.Described | None, error: Exception | None) -> None:
        self._running.discard(run)
        for timer in run.timers:
            timer.cancel()
        if not run.outcome.done():
            if described is not None:
                run.outcome.set_result(described)
            elif error is not None:
                run.outcome.set_exception(error)
        self._begin_waiting()
