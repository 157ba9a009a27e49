"""A worker process: started, spoken with, ended; and found out about when it ends by itself.

Used by one thread, which must outlive the worker: the kernel kills it with the thread that started
it, so that no worker is ever left over.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import select
import signal
import socket
import subprocess
import time
from pathlib import Path
from struct import Struct
from typing import TYPE_CHECKING, Any, Final

from nereid.backends import ModelLostError
from nereid.core.errors import Internal
from nereid.services.executor.backends.python import worker_site
from nereid.services.executor.backends.python.supervisor.model_calls import Calls
from nereid.services.executor.backends.python.supervisor.response_heads import well_formed
from nereid.services.executor.backends.python.worker_site.nereid_worker import wire
from nereid.services.executor.backends.python.worker_site.nereid_worker.channel import Channel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_SITE: Final = Path(worker_site.__file__).resolve().parent / "nereid_worker"
_NOTE: Final = Struct("<Q")
# A worker that takes nothing for this long although it should be reading has come to a stop.
_SEND_LIMIT_S: Final = 60.0
_FINALIZE_LIMIT_S: Final = 10.0
_EXIT_LIMIT_S: Final = 5.0


class WorkerProcess:
    """One worker. on_other: takes the frames that nobody asked for, logs and metrics."""

    def __init__(
        self,
        python: str,
        model: str,
        on_other: Callable[[int, bytearray], None],
        calls: Calls | None = None,
    ) -> None:
        """Start it; raises Internal if the system cannot. calls: what it may ask for."""
        self.calls = calls or Calls(None, 0)
        self._model = model
        self._on_other = on_other
        ours, theirs = socket.socketpair()
        memory = os.memfd_create("nereid-worker", os.MFD_CLOEXEC)
        try:
            os.ftruncate(memory, mmap.PAGESIZE)
            self._note = mmap.mmap(memory, mmap.PAGESIZE)
            descriptors = (theirs.fileno(), memory)
            argv = [python, str(_SITE), *map(str, descriptors), str(os.getpid())]
            # A session of its own: what a terminal sends its foreground is the executor's to heed.
            self._process = subprocess.Popen(
                argv, pass_fds=descriptors, stdin=subprocess.DEVNULL, start_new_session=True
            )
        except OSError as error:
            ours.close()
            self.calls.close()
            raise Internal(f"no worker for model '{model}' can be started: {error}") from error
        finally:
            theirs.close()
            os.close(memory)
        # Readable once it has ended.
        self._watched = os.pidfd_open(self._process.pid)
        self.channel = Channel(ours)
        # One of them is readable when there is something to read, or the worker is gone.
        self.descriptors = self.channel.fileno(), self._watched, self.calls.fileno()
        self._poll = select.poll()
        for descriptor in self.descriptors:
            self._poll.register(descriptor, select.POLLIN)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def began(self) -> int:
        """The number of the batch that it began last."""
        number: int = _NOTE.unpack_from(self._note, 0)[0]
        return number

    @property
    def ended(self) -> bool:
        """Whether the process is gone, whoever else still has its socket."""
        return self._process.poll() is not None

    def send(self, kind: int, parts: Sequence[Any]) -> None:
        """Write a frame; raises ModelLostError or SlowError."""
        self.channel.send(kind, parts, _SEND_LIMIT_S)

    def tell(self, kind: int, message: Any) -> None:
        self.send(kind, [json.dumps(message).encode()])

    def ask(self, wanted: int, limit_s: float | None) -> bytearray:
        """Wait for a frame of this kind.

        Raises:
            Internal: the worker says that it failed, ends or takes longer.
        """
        until = None if limit_s is None else time.monotonic() + limit_s
        try:
            while True:
                kind, body = self._receive(until)
                if kind == wanted:
                    return body
                if kind == wire.FAILED:
                    raise Internal(well_formed(json.loads(bytes(body))))
                self.hear(kind, body)
        except wire.SlowError:
            raise Internal(
                f"the worker of model '{self._model}' did not get ready within {limit_s:g} s"
            ) from None
        except (wire.LostError, wire.WireError, ValueError) as error:
            raise Internal(self.death()) from error

    def _receive(self, until: float | None) -> tuple[int, bytearray]:
        while (frame := self.channel.take()) is None:
            self.response_calls()
            left_s = None if until is None else until - time.monotonic()
            if left_s is not None and left_s <= 0:
                raise wire.SlowError
            self._poll.poll(None if left_s is None else left_s * 1000 + 1)
            if self.ended and (frame := self.channel.take()) is None:
                raise wire.LostError
            if frame is not None:
                break
        return frame

    def hear(self, kind: int, body: bytearray) -> None:
        """Take what the worker says of itself."""
        if kind == wire.CALL:
            self.calls.hear(wire.read_call(body))
        else:
            self._on_other(kind, body)

    @contextlib.contextmanager
    def spoken_with(self) -> Iterator[None]:
        """Raises ModelLostError if the worker has ended or its messages are malformed."""
        try:
            yield
        except wire.WireError as error:
            # The model wrote to a socket that is not its own.
            self.interrupt()
            raise ModelLostError(f"its worker made no sense: {error}") from error
        except wire.SlowError as error:
            self.interrupt()
            raise ModelLostError("its worker reads nothing any more") from error
        except wire.LostError as error:
            raise ModelLostError(self.death()) from error

    def response_calls(self) -> None:
        """Hand it the answers to what it asked for."""
        for response in self.calls.fetch():
            self.send(wire.CALL_RESPONSE, wire.call_parts(response))

    def death(self) -> str:
        """What became of it, in words. Call once it is lost."""
        try:
            code = self._process.wait(_EXIT_LIMIT_S)
        except subprocess.TimeoutExpired:
            return f"the worker of model '{self._model}' ended its connection"
        how = f"exit code {code}" if code >= 0 else f"signal {_signal_name(-code)}"
        return f"the worker of model '{self._model}' ended with {how}"

    def end(self) -> None:
        """Have it finalise its model and end; kill it if it takes too long."""
        with contextlib.suppress(wire.LostError, wire.SlowError, wire.WireError):
            if self._process.poll() is None:
                self.channel.send(wire.FINALIZE, [], _FINALIZE_LIMIT_S)
                until = time.monotonic() + _FINALIZE_LIMIT_S
                while True:
                    kind, body = self._receive(until)
                    if kind == wire.FINALIZED:
                        break
                    self.hear(kind, body)
        self.kill()

    def interrupt(self) -> None:
        """End it at once; what it said before can still be read."""
        with contextlib.suppress(ProcessLookupError):
            # What the model started itself is in the same group.
            os.killpg(self._process.pid, signal.SIGKILL)

    def kill(self) -> None:
        """End it at once, and let go of all that belonged to it."""
        self.interrupt()
        self._process.wait()
        self.channel.close()
        self.calls.close()
        os.close(self._watched)
        self._note.close()


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)
