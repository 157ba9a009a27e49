"""Detects HTTP/1.1 clients that no longer send, or no longer wait for a response.

To the kernel, a connection that the client has closed looks half-closed until something is written
to it. So a client that sent FIN is probed by an interim 102 or a chunk without content. If the
client is gone, its kernel resets the connection.
"""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Final

from nereid.rpc.net.limits.stall_detection import UploadWatch

if TYPE_CHECKING:
    from collections.abc import Callable

    from nereid_gateway.server.limits import HttpLimits

# Value of `last_activity` if the client was active after the last sweep. It saves reading the clock
# for each request.
SINCE_SWEEP: Final = math.inf


class Liveness:
    """Watches the activity of one client."""

    def __init__(self, limits: HttpLimits) -> None:
        self._limits = limits
        self._loop = asyncio.get_running_loop()
        self._upload = UploadWatch(limits.upload)
        self._probe_timer: asyncio.TimerHandle | None = None
        # Time of the client's last bytes, or of the last moment when no bytes were expected.
        self.last_activity = self._loop.time()

    def on_activity(self) -> None:
        """Note that bytes came from the client."""
        self.last_activity = self._loop.time()

    def begin_request(self) -> None:
        """Note that a request begins to arrive."""
        self._upload.restart()
        self.on_activity()

    def expect_nothing(self) -> None:
        """Note that no bytes are expected from the client at present."""
        self._upload.restart()
        self.last_activity = SINCE_SWEEP

    def silent_s(self, now: float) -> float:
        """Return the number of seconds for which the client has sent nothing."""
        if self.last_activity == SINCE_SWEEP:
            self.last_activity = now
        return now - self.last_activity

    def is_overdue(self, now: float, body_bytes: int | None) -> bool:
        """Return whether the arriving request takes too long. body_bytes: None within the head."""
        if self.silent_s(now) > self._limits.silence_s(in_headers=body_bytes is None):
            return True
        return body_bytes is not None and self._upload.overdue(body_bytes, now)

    def start_probing(self, write_probe: Callable[[], bool]) -> None:
        """Call write_probe at intervals, until it returns False or the connection is lost."""
        delay_s = self._limits.probe_delay_s
        self._probe_timer = self._loop.call_later(delay_s, self._probe, write_probe)

    def stop_probing(self) -> None:
        """Stop probing, because the connection is lost."""
        if self._probe_timer is not None:
            self._probe_timer.cancel()
            self._probe_timer = None

    def _probe(self, write_probe: Callable[[], bool]) -> None:
        self._probe_timer = None
        if write_probe():
            interval_s = self._limits.probe_interval_s
            self._probe_timer = self._loop.call_later(interval_s, self._probe, write_probe)
