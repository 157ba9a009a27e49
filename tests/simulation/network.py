"""Streams between executors and the scheduler that lose no order and nothing else: latency, stalls
and breaks come by the seed.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio
    import random
    from collections.abc import Callable, Mapping

    from nereid.rpc import Status

_LATENCY_S = (0.0002, 0.0015)


class Wire:
    """One direction of a stream."""

    def __init__(self, loop: asyncio.AbstractEventLoop, choices: random.Random) -> None:
        self._loop = loop
        self._random = choices
        self._flight: deque[Callable[[], None] | None] = deque()
        self._last_s = 0.0
        self._stalled_until_s = 0.0

    def send(self, arrive: Callable[[], None]) -> None:
        """arrive: called when it is at the other end, after all that was sent before it."""
        due_s = self._loop.time() + self._random.uniform(*_LATENCY_S)
        self._last_s = max(due_s, self._last_s, self._stalled_until_s)
        self._flight.append(arrive)
        self._loop.call_at(self._last_s, self._arrive)

    def stall(self, duration_s: float) -> None:
        """Hold back what is sent from now on."""
        self._stalled_until_s = self._loop.time() + duration_s

    def cut(self) -> None:
        """Lose what is on its way."""
        self._flight = deque([None] * len(self._flight))

    def _arrive(self) -> None:
        arrive = self._flight.popleft()
        if arrive is not None:
            arrive()


class Network:
    """Where streams are made."""

    def __init__(self, loop: asyncio.AbstractEventLoop, choices: random.Random) -> None:
        self.loop = loop
        self.random = choices

    def wire(self) -> Wire:
        return Wire(self.loop, self.random)


class Stream:
    """A stream that an executor opens. What the scheduler sees of it is as nereid.rpc.Call."""

    peer = "an executor"
    peer_is_local = True

    def __init__(
        self,
        network: Network,
        metadata: Mapping[str, str],
        on_message: Callable[[bytes], None],
        on_close: Callable[[], None],
    ) -> None:
        """on_message, on_close: the executor's."""
        self.up, self.down = network.wire(), network.wire()
        self._metadata = metadata
        self._to_executor = on_message
        self._on_close = on_close
        self.on_message: Callable[[bytes], None] | None = None
        self.on_cancel: Callable[[], None] | None = None
        self.on_half_close: Callable[[], None] | None = None
        # No longer open at this end.
        self._executor_ended = self._scheduler_ended = False

    @property
    def lost(self) -> bool:
        """Whether either end has ended it."""
        return self._executor_ended or self._scheduler_ended

    # ---- the executor's end

    def open(self, accept: Callable[[Stream], None]) -> None:
        self.up.send(lambda: accept(self))

    def write(self, message: bytes) -> None:
        if not self._executor_ended:
            self.up.send(lambda: self._to_scheduler(message))

    def break_off(self, *, lossy: bool) -> None:
        """The connection breaks; lossy: with what was on its way. Each end sees it by itself."""
        if lossy:
            self.up.cut()
            self.down.cut()
        self.up.send(self._cancel)
        self.down.send(self._close)

    def close(self, *, lossy: bool) -> None:
        """The executor's end is gone."""
        if not self._executor_ended:
            self._executor_ended = True
            if lossy:
                self.up.cut()
            self.up.send(self._cancel)

    def _at_executor(self, message: bytes) -> None:
        if not self._executor_ended:
            self._to_executor(message)

    def _close(self) -> None:
        if not self._executor_ended:
            self._executor_ended = True
            self._on_close()

    # ---- the scheduler's end

    def get(self, key: str) -> str | None:
        return self._metadata.get(key)

    def accept(self) -> None:
        """Nothing waits for the headers."""

    def set_keepalive(self, interval_s: float | None, timeout_s: float) -> None:
        """Breaks are noticed."""

    def send(self, message: bytes) -> None:
        if not self._scheduler_ended:
            self.down.send(lambda: self._at_executor(message))

    send_now = send

    def finish(self) -> None:
        if not self._scheduler_ended:
            self._scheduler_ended = True
            self.down.send(self._close)

    def fail(self, status: Status, message: str) -> None:
        self.finish()

    def _to_scheduler(self, message: bytes) -> None:
        if not self._scheduler_ended and self.on_message is not None:
            self.on_message(message)

    def _cancel(self) -> None:
        if self._scheduler_ended:
            return
        if self.on_cancel is None:
            self._scheduler_ended = True
        else:
            self.on_cancel()
            self._scheduler_ended = True
