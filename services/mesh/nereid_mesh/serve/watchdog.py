"""Watchdog that finds hanging children: those whose event loop shows no heartbeat for too long.

A child is watched from its first heartbeat on, since imports may take long. A child whose models
may block the interpreter while they load has a longer limit, unless it is stopped (SIGSTOP), which
/proc tells.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from typing import Final

from nereid.process.liveness import INTERVAL_S, VARIABLE, is_stopped

# Factor on the limit of a child that is not stopped and whose models may block it.
_BUSY_FACTOR: Final = 30
# A gap of more than this share of the limit between two checks means that the machine was
# suspended.
_SUSPENDED: Final = 0.5
_READ_BYTES: Final = 4096


class Watchdog:
    """Watch over one child's heartbeats. Pure: the time and what was seen are passed in."""

    def __init__(self, limit_s: float, *, may_block: bool) -> None:
        """Set the longest silence; with `may_block` a child that is not stopped has much longer."""
        self._limit_s = limit_s
        self._busy_limit_s = limit_s * (_BUSY_FACTOR if may_block else 1)
        # `None` means no heartbeat yet.
        self._beat_at: float | None = None
        self._looked_at: float | None = None

    def is_hung(self, now: float, *, beat: bool, stopped: bool) -> bool:
        """Return whether the child hangs; called about once a second.

        beat: true if there were heartbeats since the last call.
        """
        gap_s = 0.0 if self._looked_at is None else now - self._looked_at
        self._looked_at = now
        was_suspended = gap_s > self._limit_s * _SUSPENDED and gap_s > 2 * INTERVAL_S
        if beat or (was_suspended and self._beat_at is not None):
            self._beat_at = now
        if self._beat_at is None:
            return False
        return now - self._beat_at >= (self._limit_s if stopped else self._busy_limit_s)


class HeartbeatPipe:
    """Pipe that one child writes its heartbeats to. Belongs to one event loop."""

    def __init__(self) -> None:
        self._read_end, self._write_end = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)

    @property
    def descriptors(self) -> tuple[int, ...]:
        """Descriptors that the child inherits."""
        return (self._write_end,)

    @property
    def environ(self) -> dict[str, str]:
        """Variables by which the child finds the pipe."""
        return {VARIABLE: str(self._write_end)}

    def on_started(self) -> None:
        """Close the child's end here, once the child has it."""
        os.close(self._write_end)
        self._write_end = -1

    def has_beaten(self) -> bool:
        """Return whether there were heartbeats since the last call."""
        with contextlib.suppress(BlockingIOError):
            return bool(os.read(self._read_end, _READ_BYTES))
        return False

    def close(self) -> None:
        """Close both ends of the pipe."""
        os.close(self._read_end)
        if self._write_end >= 0:
            os.close(self._write_end)


async def until_hung(pipe: HeartbeatPipe, watchdog: Watchdog, pid: int) -> None:
    """Return once the child hangs; cancel it when the child has ended."""
    loop = asyncio.get_running_loop()
    while True:
        await asyncio.sleep(INTERVAL_S)
        beat = pipe.has_beaten()
        if watchdog.is_hung(loop.time(), beat=beat, stopped=is_stopped(pid)):
            return
