"""An event loop that runs in the threads that wait for its results.

So no other thread is between the socket and the caller. The driver's own thread runs the loop if
work is pending and no caller waits, and from time to time while nothing is pending.
"""

# layout: not compiled, extends asyncio.SelectorEventLoop

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import selectors
import threading
from typing import TYPE_CHECKING, Any, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

_log = logging.getLogger(__name__)

T = TypeVar("T")

# Maximum time that arriving data (a ping, or the end of a connection) waits while nothing is
# pending.
IDLE_S: Final = 1.0
_READ_BYTES: Final = 1 << 16


class _Selector(selectors.PollSelector):
    """Remembers an exception that a signal handler raises while the loop waits.

    Such an exception loses no work of the loop. The selector uses poll: with epoll, forked
    processes would share a descriptor and change it when they end.
    """

    raised: BaseException | None = None

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        try:
            return super().select(timeout)
        except BaseException as error:
            self.raised = error
            raise


class _Loop(asyncio.SelectorEventLoop):
    """Reads at most 64 KiB at once: for larger buffers malloc() would map new memory each time."""

    def _make_socket_transport(self, *args: Any, **options: Any) -> Any:
        transport: Any = super()._make_socket_transport(*args, **options)  # type: ignore[misc]
        transport.max_size = _READ_BYTES
        return transport


class ClosedError(Exception):
    """Raised for work that is submitted after the loop has ended."""


class LoopDriver:
    """Owns the loop. Any thread may call the methods. Finalisers may call all but run()."""

    def __init__(
        self,
        is_busy: Callable[[], bool],
        on_failure: Callable[[], None],
        idle_s: float = IDLE_S,
    ) -> None:
        """Start the driver's own thread; OSError or RuntimeError if the system cannot.

        on_failure is called when a callback has raised and may have left its work incomplete.
        idle_s: seconds between two runs while nothing is pending.
        """
        self._selector = _Selector()
        self.loop: asyncio.AbstractEventLoop = _Loop(self._selector)
        self.loop.set_exception_handler(self._on_exception)
        self._is_busy = is_busy
        self._on_failure = on_failure
        self._idle_s = idle_s
        # The thread that runs the loop holds this lock.
        self._running = threading.Lock()
        # Guards the end of the loop. The lock is reentrant: a finaliser that calls submit() may
        # interrupt a thread that holds it.
        self._gate = threading.RLock()
        self._closed = False
        self._last: Callable[[], Coroutine[Any, Any, None]] | None = None
        # Each item wakes the driver's own thread. Finalisers may put items into a SimpleQueue.
        self._wakes: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._raised: BaseException | None = None
        self._thread = threading.Thread(target=self._run_own, name="nereid-link", daemon=True)
        try:
            self._thread.start()
        except RuntimeError:
            self.loop.close()
            raise

    def submit(self, work: Callable[[], None]) -> None:
        """Have the loop call work() soon; raise ClosedError after the loop's end."""
        with self._gate:
            if self._closed:
                raise ClosedError
            self.loop.call_soon_threadsafe(work)
        self._wakes.put(None)

    def run(self, work: Callable[[], None], received: queue.SimpleQueue[T]) -> T:
        """Have the loop call work(); wait for an item in the queue `received` and return the item.

        The callback that puts the item there must call stop(). Raises ClosedError, or what a
        callback or a signal handler raises in this thread.
        """
        # A thread that runs another event loop cannot run this loop, and only waits.
        elsewhere = asyncio._get_running_loop() is not None  # noqa: SLF001 - does not raise
        if elsewhere or not self._running.acquire(blocking=False):
            self.submit(work)
            return received.get()
        try:
            if self._closed:
                raise ClosedError
            self.loop.call_soon(work)
            # Once close() is called, the driver's own thread runs the loop to its end.
            while received.empty() and self._last is None:
                self._run_loop()
        finally:
            self._running.release()
            if self._last is not None or self._is_busy():
                self._wakes.put(None)
        return received.get()

    def stop(self) -> None:
        """Stop the loop, so that its thread checks for a result. Call this on the loop only."""
        self.loop.stop()

    def close(self, last: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Finish all submitted work, then run last() and end the loop.

        last() must put an item into the queue of every thread that waits in run(). Only the first
        call has an effect.
        """
        with self._gate:
            if self._last is not None:
                return
            self._last = last
        with contextlib.suppress(ClosedError):
            self.submit(self.loop.stop)

    def _run_loop(self) -> None:
        """Run the loop until stop(). The caller must hold the lock `_running`."""
        try:
            self.loop.run_forever()
            raised, self._raised = self._raised, None
            if raised is not None:
                raise raised
        except BaseException as error:
            raised, self._selector.raised = self._selector.raised, None
            if error is not raised:
                self._on_failure()
            raise

    def _on_exception(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self._raised = context.get("exception") or RuntimeError(context["message"])
        self.loop.stop()

    def _run_own(self) -> None:
        while self._last is None:
            with contextlib.suppress(queue.Empty):
                self._wakes.get(timeout=self._idle_s)
            with self._running:
                try:
                    while self._is_busy() and self._last is None:
                        self._run_loop()
                    # Links send their data at the end of a turn, so the loop stops one turn later.
                    self.loop.call_soon(self.loop.call_soon, self.loop.stop)
                    self._run_loop()
                except BaseException:
                    # Other threads wait for this thread's work, so it must survive any exception.
                    _log.exception("the link to the scheduler has failed")
        with self._running:
            self._end()

    def _end(self) -> None:
        assert self._last is not None, "close() comes first"
        with self._gate:
            self._closed = True
        last = self.loop.create_task(self._last())
        last.add_done_callback(lambda _: self.loop.stop())
        try:
            # Submitted work may stop the loop too. The loop is then run again.
            while not last.done():
                self.loop.run_forever()
            last.result()
        except BaseException:
            _log.exception("the link to the scheduler could not be closed")
        self.loop.close()
