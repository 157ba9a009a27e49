"""Recent responses, which the worker sends to the executor if the scheduler may not have got them.

If the scheduler is lost, its successor may send the requests again. The executor then has the
responses and need not run the requests a second time.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING, Final

from nereid_executor.core.recent_runs import MAX_KEPT_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_MAX_KEPT: Final = 64


class KeptResponses:
    """The kept responses of one stream. Any thread may call the methods."""

    def __init__(self, send: Callable[[Sequence[int], bytes], None]) -> None:
        """Start empty; send passes request ids and their Executed message to the executor."""
        self._send = send
        self._kept: deque[tuple[Sequence[int], bytes]] = deque(maxlen=_MAX_KEPT)
        # True once the scheduler is lost. Responses that are added after that exist nowhere else.
        self.is_cut = False
        # The lock is held while responses are sent. No response may be sent after the report that
        # the stream has ended.
        self._lock = threading.Lock()
        self._ended = False

    def add(self, ids: Sequence[int], reply: bytes) -> None:
        """Keep the responses of a batch that has run; keep large ones only if the stream is cut."""
        if self.is_cut or len(reply) <= MAX_KEPT_BYTES:
            self._kept.append((ids, reply))

    def cut(self) -> None:
        """Send all responses, because the stream is lost.

        The responses are sent at once, because another scheduler may ask the executor for them
        while the model still executes a batch.
        """
        self.is_cut = True
        self._send_all()

    def end(self) -> None:
        """Send the remaining responses if the stream was cut; send none after this call."""
        if self.is_cut:
            self._send_all()
        with self._lock:
            self._ended = True

    def _send_all(self) -> None:
        with self._lock:
            while self._kept and not self._ended:
                self._send(*self._kept.popleft())
