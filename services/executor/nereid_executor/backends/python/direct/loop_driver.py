"""An event loop that is run by whichever thread waits for it.

A call that waits for its response runs the loop itself meanwhile, so that no other thread stands
between the socket and the caller. What nobody waits for in this way is left to a thread of the
driver's own, which also looks after the loop now and then while nothing is pending.
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

# How long what arrives may wait while nothing is pending: a ping, or the end of a connection.
IDLE_S: Final = 1.0
_READ_BYTES: Final = 1 << 16


class _Selector(selectors.PollSelector):
    """Notes what the handler of a signal raises while the loop waits: nothing is lost by that.

    No epoll: that would belong to the model's forked processes as well, whose end would change it.
    """

    raised: BaseException | None = None

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        try:
            return super().select(timeout)
        except BaseException as error:
            self.raised = error
            raise


class _Loop(asyncio.SelectorEventLoop):
    """Reads no more at once than malloc() has at hand: for more, it would map memory each time."""

    def _make_socket_transport(self, *args: Any, **options: Any) -> Any:
        transport: Any = super()._make_socket_transport(*args, **options)  # type: ignore[misc]
        transport.max_size = _READ_BYTES
        return transport


class ClosedError(Exception):
    """The loop has ended."""


class LoopDriver:
    """Owns the loop. May be used from any thread, and by finalisers except for run()."""

    def __init__(
        self,
        is_busy: Callable[[], bool],
        on_failure: Callable[[], None],
        idle_s: float = IDLE_S,
    ) -> None:
        """is_busy: whether anything is awaited of the loop. on_failure: a callback has raised, and
        what it has left undone is not known.

        Raises:
            OSError, RuntimeError: the system has no more descriptors or threads.
        """
        self._selector = _Selector()
        self.loop: asyncio.AbstractEventLoop = _Loop(self._selector)
        self.loop.set_exception_handler(self._on_exception)
        self._is_busy = is_busy
        self._on_failure = on_failure
        self._idle_s = idle_s
        # Held by the thread that runs the loop.
        self._running = threading.Lock()
        # Guards the end. Reentrant, as finalisers submit work.
        self._gate = threading.RLock()
        self._closed = False
        self._last: Callable[[], Coroutine[Any, Any, None]] | None = None
        # Work for the driver's own thread; finalisers may put into it.
        self._wakes: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._raised: BaseException | None = None
        self._thread = threading.Thread(target=self._run_own, name="nereid-link", daemon=True)
        try:
            self._thread.start()
        except RuntimeError:
            self.loop.close()
            raise

    def submit(self, work: Callable[[], None]) -> None:
        """Have the loop call work soon; raises ClosedError."""
        with self._gate:
            if self._closed:
                raise ClosedError
            self.loop.call_soon_threadsafe(work)
        self._wakes.put(None)

    def run(self, work: Callable[[], None], received: queue.SimpleQueue[T]) -> T:
        """Have the loop call work, and wait for what comes into the queue.

        Whoever puts it there, on the loop, calls stop().

        Raises:
            ClosedError: the loop has ended.
            BaseException: what a callback of the loop has raised in this thread, such as the
                exception of a signal handler.
        """
        # Within another loop none can be run.
        elsewhere = asyncio._get_running_loop() is not None  # noqa: SLF001 - does not raise
        if elsewhere or not self._running.acquire(blocking=False):
            self.submit(work)
            return received.get()
        try:
            if self._closed:
                raise ClosedError
            self.loop.call_soon(work)
            # At the end, the driver's own thread has the loop.
            while received.empty() and self._last is None:
                self._run_loop()
        finally:
            self._running.release()
            if self._last is not None or self._is_busy():
                self._wakes.put(None)
        return received.get()

    def stop(self) -> None:
        """Have the thread that runs the loop look whether it is done. On the loop."""
        self.loop.stop()

    def close(self, last: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """End, by last(): it comes after all that was submitted, and has to see to it that all who
        wait in run() get something. The first call counts.
        """
        with self._gate:
            if self._last is not None:
                return
            self._last = last
        with contextlib.suppress(ClosedError):
            self.submit(self.loop.stop)

    def _run_loop(self) -> None:
        """Until stop(); with the lock held."""
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

    # ---- the driver's own thread

    def _run_own(self) -> None:
        while self._last is None:
            with contextlib.suppress(queue.Empty):
                self._wakes.get(timeout=self._idle_s)
            with self._running:
                try:
                    while self._is_busy() and self._last is None:
                        self._run_loop()
                    # Links send at the end of a turn: in the next one.
                    self.loop.call_soon(self.loop.call_soon, self.loop.stop)
                    self._run_loop()
                except BaseException:
                    # Whatever it is, others wait for this thread.
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
            # What was submitted may stop the loop as well.
            while not last.done():
                self.loop.run_forever()
            last.result()
        except BaseException:
            _log.exception("the link to the scheduler could not be closed")
        self.loop.close()
