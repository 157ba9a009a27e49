"""Responses that the scheduler may not have received, for the executor.

The executor keeps them because the requests may be sent again.
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
    """The kept responses of one stream. Any thread may use them."""

    def __init__(self, send: Callable[[Sequence[int], bytes], None]) -> None:
        """Keep nothing yet; send passes requests' ids and Executed message to the executor."""
        self._send = send
        self._kept: deque[tuple[Sequence[int], bytes]] = deque(maxlen=_MAX_KEPT)
        # True if the scheduler is lost, so that the responses exist nowhere else.
        self.is_cut = False
        # The lock is held while responses are sent, because none may follow the report that the
        # stream has ended.
        self._lock = threading.Lock()
        self._ended = False

    def add(self, ids: Sequence[int], reply: bytes) -> None:
        """Keep the responses of a batch that has run; large ones only if the stream is cut."""
        if self.is_cut or len(reply) <= MAX_KEPT_BYTES:
            self._kept.append((ids, reply))

    def cut(self) -> None:
        """Send all responses, because the stream is lost.

        The executor may be asked for them while the model still executes.
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
