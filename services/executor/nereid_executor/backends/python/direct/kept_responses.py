"""Responses that the scheduler may not have got, for the executor: requests may be sent again."""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING, Final

from nereid_executor.core.recent_runs import MAX_KEPT_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_MAX_KEPT: Final = 64


class KeptResponses:
    """Those of one stream. From any thread."""

    def __init__(self, send: Callable[[Sequence[int], bytes], None]) -> None:
        """send: passes the requests' ids and their Executed message on to the executor."""
        self._send = send
        self._kept: deque[tuple[Sequence[int], bytes]] = deque(maxlen=_MAX_KEPT)
        # The scheduler is lost: nobody else has the responses.
        self.is_cut = False
        # Held while they are sent; nothing may follow the report that the stream has ended.
        self._lock = threading.Lock()
        self._ended = False

    def add(self, ids: Sequence[int], reply: bytes) -> None:
        """A batch has run. Large responses are kept only if the stream is cut."""
        if self.is_cut or len(reply) <= MAX_KEPT_BYTES:
            self._kept.append((ids, reply))

    def cut(self) -> None:
        """The stream is lost: others may ask for these while the model goes on executing."""
        self.is_cut = True
        self._send_all()

    def end(self) -> None:
        """The stream has ended."""
        if self.is_cut:
            self._send_all()
        with self._lock:
            self._ended = True

    def _send_all(self) -> None:
        with self._lock:
            while self._kept and not self._ended:
                self._send(*self._kept.popleft())
