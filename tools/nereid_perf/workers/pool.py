"""The parent's side of the workers: starts them, receives reports, and detects ended workers."""

from __future__ import annotations

import contextlib
import selectors
import signal
import socket
import subprocess
import sys
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from nereid_perf.workers.messages import Begin, Decoder, Failed, encoded

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nereid_perf.plan import Plan

_READ_BYTES: Final = 1 << 16
_EXIT_S: Final = 2.0
_MODULE: Final = "nereid_perf.workers.worker"


class WorkerError(Exception):
    """Raised if a worker cannot go on, or its process ended; the text says why."""


class _Worker:
    def __init__(self, number: int, plan: Plan) -> None:
        self.number = number
        self.decoder = Decoder()
        self.socket, theirs = socket.socketpair()
        argv = [sys.executable, "-P", "-m", _MODULE, str(theirs.fileno())]
        with theirs:
            self.process = subprocess.Popen(
                argv, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL
            )
        self.send(Begin(plan, number))

    def send(self, message: Any) -> None:
        with contextlib.suppress(OSError):
            # If the worker has ended, receive() reports why.
            self.socket.sendall(encoded(message))

    def ending(self) -> str:
        """Return why the process ended."""
        try:
            code = self.process.wait(_EXIT_S)
        except subprocess.TimeoutExpired:
            return "closed its pipe"
        if code < 0:
            return f"was ended by {signal.Signals(-code).name}"
        return f"exited with {code}"


class WorkerPool:
    """The workers of a run; close() ends them."""

    def __init__(self, plan: Plan) -> None:
        self._selector = selectors.DefaultSelector()
        self._workers: list[_Worker] = []
        try:
            for number in range(plan.workers):
                worker = _Worker(number, plan)
                self._workers.append(worker)
                self._selector.register(worker.socket, selectors.EVENT_READ, worker)
        except BaseException:
            self.close()
            raise

    @property
    def pids(self) -> list[int]:
        """Process ids of the workers."""
        return [worker.process.pid for worker in self._workers]

    def send(self, *messages: Any) -> None:
        """Send one message to each worker, or the same message to all."""
        each = messages if len(messages) > 1 else messages * len(self._workers)
        for worker, message in zip(self._workers, each, strict=True):
            worker.send(message)

    def receive(self, timeout_s: float) -> list[tuple[int, Any]]:
        """Return (worker's number, message) pairs, or [] after timeout_s. May raise WorkerError."""
        received: list[tuple[int, Any]] = []
        limit_s = monotonic() + timeout_s
        # A large message comes in pieces.
        while not received and (ready := self._selector.select(max(0.0, limit_s - monotonic()))):
            for key, _ in ready:
                received += self._messages(key.data)
        return received

    def _messages(self, worker: _Worker) -> Iterator[tuple[int, Any]]:
        try:
            data = worker.socket.recv(_READ_BYTES)
        except ConnectionError:
            data = b""
        if not data:
            raise WorkerError(f"worker {worker.number} {worker.ending()}")
        for message in worker.decoder.feed(data):
            if isinstance(message, Failed):
                raise WorkerError(message.why)
            yield worker.number, message

    def close(self) -> None:
        """End the workers, and wait for that."""
        self._selector.close()
        for worker in self._workers:
            worker.socket.close()
        for worker in self._workers:
            try:
                worker.process.wait(_EXIT_S)
            except subprocess.TimeoutExpired:
                worker.process.kill()
                worker.process.wait()
