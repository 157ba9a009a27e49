"""Recent responses. If the stream is lost, the worker sends them to the executor."""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING, Final

from nereid_executor.core.recent_runs import MAX_KEPT_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_MAX_KEPT: Final = 64


class KeptResponses:
    """The kept responses of one stream. Thread-safe."""

    def __init__(self, send: Callable[[Sequence[int], bytes], None]) -> None:
        """Start empty. send passes request ids and their Executed message on."""
        self._send = send
        self._kept: deque[tuple[Sequence[int], bytes]] = deque(maxlen=_MAX_KEPT)
        # True once the scheduler is lost. Responses that are added after that exist nowhere else.
        self.stream_lost = False
        # The lock is held while responses are sent: none may follow the report of the stream's end.
        self._lock = threading.Lock()
        self._ended = False

    def add(self, ids: Sequence[int], reply: bytes) -> None:
        """Keep a batch's responses; keep large ones only if the stream is lost."""
        if self.stream_lost or len(reply) <= MAX_KEPT_BYTES:
            self._kept.append((ids, reply))

    def on_stream_lost(self) -> None:
        """Send all responses at once: other schedulers may ask for them before a batch ends."""
        self.stream_lost = True
        self._send_all()

    def end(self) -> None:
        """Send the remaining responses if the stream was lost. None is sent after this call."""
        if self.stream_lost:
            self._send_all()
        with self._lock:
            self._ended = True

    def _send_all(self) -> None:
        with self._lock:
            while self._kept and not self._ended:
                self._send(*self._kept.popleft())
