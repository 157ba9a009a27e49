"""Writes what confined workers print to the log: whole lines with their name, at a bounded rate.

A confined worker has no access to the executor's own output, where it could forge others' lines.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import sys
import threading
import time
from typing import TYPE_CHECKING, Final

from nereid_executor.backends.python.supervisor.rate_budget import RateBudget
from nereid_executor.backends.python.worker_site.nereid_worker.runtime.printed_lines import (
    escape_controls,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_READ_BYTES: Final = 1 << 16
_MAX_LINE: Final = 1 << 16
_BURST_BYTES: Final = 1 << 20
_BYTES_PER_S: Final = 1 << 16


def output_budget(now: Callable[[], float] = time.monotonic) -> RateBudget:
    """Return the bytes that one instance may write to the log."""
    return RateBudget(_BURST_BYTES, _BYTES_PER_S, now)


class OutputLines:
    """The lines of one worker's output."""

    def __init__(self, name: str, write: Callable[[str], object], budget: RateBudget) -> None:
        self._prefix = f"{name}: "
        self._write = write
        self._budget = budget
        self._begun = b""

    def feed(self, data: bytes) -> None:
        """Write the lines that are complete with these bytes."""
        *lines, self._begun = (self._begun + data).split(b"\n")
        if len(self._begun) >= _MAX_LINE:
            lines.append(self._begun)
            self._begun = b""
        for line in lines:
            self._write_line(line)

    def finish(self) -> None:
        """Write the last, incomplete line."""
        if self._begun:
            self.feed(b"\n")

    def _write_line(self, line: bytes) -> None:
        # The worker adds the name to what Python code prints.
        text = line.decode("utf-8", "replace").removeprefix(self._prefix)[:_MAX_LINE]
        if self._budget.spend(len(text) + 1):
            if dropped := self._budget.take_dropped():
                self._write(f"{self._prefix}{dropped} lines were dropped: too much output\n")
            self._write(f"{self._prefix}{escape_controls(text)}\n")


class WorkerOutput:
    """Reads the output of all confined workers in one thread. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._selector: selectors.BaseSelector | None = None

    @contextlib.contextmanager
    def pipe(self, name: str) -> Iterator[int]:
        """Give a descriptor for a process's output, and read that until all of it are closed."""
        reader, writer = os.pipe()
        try:
            yield writer
        except BaseException:
            os.close(reader)
            raise
        finally:
            os.close(writer)
        self.add(reader, name)

    def add(self, descriptor: int, name: str) -> None:
        """Read a pipe, which then belongs to this object, until its writers have closed it."""
        lines = OutputLines(name, _write_log, output_budget())
        os.set_blocking(descriptor, False)
        with self._lock:
            if self._selector is None:
                self._selector = selectors.EpollSelector()
                threading.Thread(target=self._run, name="worker-output", daemon=True).start()
            self._selector.register(descriptor, selectors.EVENT_READ, lines)

    def _run(self) -> None:
        selector = self._selector
        assert selector is not None, "add() makes it"
        while True:
            # Without descriptors the wait goes on: epoll notices those that are added meanwhile.
            for key, _ in selector.select():
                self._read(selector, key)

    def _read(self, selector: selectors.BaseSelector, key: selectors.SelectorKey) -> None:
        descriptor, lines = key.fd, key.data
        with contextlib.suppress(BlockingIOError):
            data = os.read(descriptor, _READ_BYTES)
            lines.feed(data)
            if not data:
                lines.finish()
                with self._lock:
                    selector.unregister(descriptor)
                os.close(descriptor)


def _write_log(text: str) -> None:
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.write(text)
        sys.stderr.flush()


WORKER_OUTPUT: Final = WorkerOutput()
