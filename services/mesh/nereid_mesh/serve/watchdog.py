"""Watchdog that finds hung children, whose event loop has sent no heartbeat for too long.

A child is watched from its first heartbeat on, since imports take long. The limit is longer for a
child whose models may block the interpreter, unless the child is stopped (SIGSTOP).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from typing import Final

from nereid.process.liveness import INTERVAL_S, VARIABLE, is_stopped

# Factor on the limit of a child that is not stopped and whose models may block the interpreter.
_BUSY_FACTOR: Final = 30
# Share of the limit. After a longer gap between two checks, the machine was suspended.
_SUSPENDED: Final = 0.5
_READ_BYTES: Final = 4096


class Watchdog:
    """Watches the heartbeats of one child. The caller passes in the time and the observations."""

    def __init__(self, limit_s: float, *, may_block: bool) -> None:
        """Set the maximum silence. It is much longer if may_block, but not for a stopped child."""
        self._limit_s = limit_s
        self._busy_limit_s = limit_s * (_BUSY_FACTOR if may_block else 1)
        # Time of the last heartbeat; `None` if there was none yet.
        self._beat_at: float | None = None
        self._looked_at: float | None = None

    def is_hung(self, now: float, *, beat: bool, stopped: bool) -> bool:
        """Return whether the child hangs; call this about once a second."""
        gap_s = 0.0 if self._looked_at is None else now - self._looked_at
        self._looked_at = now
        was_suspended = gap_s > self._limit_s * _SUSPENDED and gap_s > 2 * INTERVAL_S
        if beat or (was_suspended and self._beat_at is not None):
            self._beat_at = now
        if self._beat_at is None:
            return False
        return now - self._beat_at >= (self._limit_s if stopped else self._busy_limit_s)


class HeartbeatPipe:
    """The pipe to which one child writes its heartbeats; it belongs to one event loop."""

    def __init__(self) -> None:
        self._read_end, self._write_end = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)

    @property
    def descriptors(self) -> tuple[int, ...]:
        """Descriptors that the child inherits."""
        return (self._write_end,)

    @property
    def environ(self) -> dict[str, str]:
        """Environment variable that tells the child the number of its end of the pipe."""
        return {VARIABLE: str(self._write_end)}

    def on_started(self) -> None:
        """Close this process's copy of the child's end, once the child has started."""
        os.close(self._write_end)
        self._write_end = -1

    def has_beaten(self) -> bool:
        """Return whether heartbeats have arrived since the last call."""
        with contextlib.suppress(BlockingIOError):
            return bool(os.read(self._read_end, _READ_BYTES))
        return False

    def close(self) -> None:
        """Close both ends of the pipe."""
        os.close(self._read_end)
        if self._write_end >= 0:
            os.close(self._write_end)


async def until_hung(pipe: HeartbeatPipe, watchdog: Watchdog, pid: int) -> None:
    """Return once the child hangs. The caller cancels this when the child has ended."""
    loop = asyncio.get_running_loop()
    while True:
        await asyncio.sleep(INTERVAL_S)
        beat = pipe.has_beaten()
        if watchdog.is_hung(loop.time(), beat=beat, stopped=is_stopped(pid)):
            return
