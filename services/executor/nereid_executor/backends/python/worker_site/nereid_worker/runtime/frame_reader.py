"""Reads the frames that the executor sends, in whichever thread has the time for it."""

from __future__ import annotations

import os
import sys
import threading
import traceback
from typing import TYPE_CHECKING

from ..protocol import wire

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ..protocol.channel import Channel

    Handler = Callable[[bytearray], None]


class FrameReader:
    """Hands each frame to the handler of its kind, in the reading thread."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._handlers: dict[int, Handler] = {}
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def add_handlers(self, handlers: Mapping[int, Handler]) -> None:
        """By kind."""
        self._handlers.update(handlers)

    @property
    def has_thread(self) -> bool:
        """Whether a thread of its own reads."""
        return self._thread is not None

    def start_thread(self) -> None:
        """Have a thread of its own read from now on."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="nereid", daemon=True)
            self._thread.start()

    def in_thread(self) -> bool:
        """Whether this is the thread that reads, and so must not wait for a frame."""
        return threading.current_thread() is self._thread

    def read_frame(self) -> None:
        """Wait for a frame and handle it; raises wire.LostError."""
        with self._lock:
            self._handle(*self._channel.receive())

    def read_arrived(self) -> None:
        """Handle the frames that have arrived, unless another thread does; without waiting."""
        if self._thread is None and self._lock.acquire(blocking=False):
            try:
                while (frame := self._channel.receive_nowait()) is not None:
                    self._handle(*frame)
            finally:
                self._lock.release()

    def _run(self) -> None:
        try:
            with self._lock:
                while True:
                    self._handle(*self._channel.receive())
        except wire.LostError:
            pass
        except Exception:
            # The executor broke the protocol: it starts another worker.
            traceback.print_exc()
            sys.stderr.flush()
        finally:
            os._exit(1)

    def _handle(self, kind: int, body: bytearray) -> None:
        handler = self._handlers.get(kind)
        if handler is None:
            raise wire.WireError(f"the executor sent a frame of kind {kind}")
        handler(body)
