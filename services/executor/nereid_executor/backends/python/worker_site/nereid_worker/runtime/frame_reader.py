"""Reads the frames that the executor sends, in a thread that waits or in a dedicated thread."""

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
    """Reads frames and calls the handler of each frame's kind, in the reading thread."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._handlers: dict[int, Handler] = {}
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def add_handlers(self, handlers: Mapping[int, Handler]) -> None:
        """Add handlers; the dictionary maps a kind of frame to its handler."""
        self._handlers.update(handlers)

    @property
    def has_thread(self) -> bool:
        """True if a dedicated thread reads the frames."""
        return self._thread is not None

    def start_thread(self) -> None:
        """Start a thread that reads from now on, unless there is one."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="nereid", daemon=True)
            self._thread.start()

    def in_thread(self) -> bool:
        """Return whether the calling thread is the reading one, which must not wait for a frame."""
        return threading.current_thread() is self._thread

    def read_frame(self) -> None:
        """Wait for a frame and handle it; raise wire.LostError if the socket was closed."""
        with self._lock:
            self._handle(*self._channel.receive())

    def read_arrived(self) -> None:
        """Handle the frames that have arrived, without waiting, unless another thread reads."""
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
            # The executor broke the protocol. When this process ends, the executor starts a new
            # worker.
            traceback.print_exc()
            sys.stderr.flush()
        finally:
            os._exit(1)

    def _handle(self, kind: int, body: bytearray) -> None:
        handler = self._handlers.get(kind)
        if handler is None:
            raise wire.WireError(f"the executor sent a frame of kind {kind}")
        handler(body)
