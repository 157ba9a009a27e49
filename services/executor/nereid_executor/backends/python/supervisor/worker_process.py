"""Starts a worker process, communicates with it, and ends it.

One thread uses a worker. The kernel kills the worker when the thread that started it ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import mmap
import os
import select
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from struct import Struct, unpack_from
from typing import TYPE_CHECKING, Any, Final, Protocol

import nereid
import nereid_executor
from nereid.backends import ModelLostError
from nereid.config.inherited_secrets import public_environ
from nereid.core.errors import Internal, InvalidArgument
from nereid.core.files.temporary_directories import SANDBOX, TemporaryDirectory
from nereid_executor.backends.python import direct, worker_site
from nereid_executor.backends.python.messages.response_heads import well_formed
from nereid_executor.backends.python.sandbox.policy import launcher_command, policy_descriptor
from nereid_executor.backends.python.supervisor.model_calls import ModelCalls
from nereid_executor.backends.python.supervisor.stopped_workers import STOPPED_WORKERS
from nereid_executor.backends.python.supervisor.worker_groups import WORKER_GROUPS
from nereid_executor.backends.python.supervisor.worker_output import WORKER_OUTPUT
from nereid_executor.backends.python.worker_site.nereid_worker.protocol import wire
from nereid_executor.backends.python.worker_site.nereid_worker.protocol.channel import (
    Channel,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from nereid_executor.backends.python.sandbox.policy import Confinement

# The first program works in any Python. The second needs Nereid's own Python and can serve a
# stream.
_WORKER: Final = str(Path(worker_site.__path__[0]).resolve() / "nereid_worker")
_DIRECT_WORKER: Final = direct.__path__[0]
SOURCES: Final = os.pathsep.join(
    dict.fromkeys(str(Path(each.__path__[0]).parent) for each in (nereid, nereid_executor))
)

# Layout of the shared memory: number of the last batch, number of executing requests, their ids.
_LAST_BATCH: Final = Struct("<Q")
_RUNNING: Final = Struct("<Q")
# A worker counts as hung if it reads nothing for this time although frames wait.
_SEND_TIMEOUT_S: Final = 60.0
_FINALIZE_TIMEOUT_S: Final = 10.0
_EXIT_TIMEOUT_S: Final = 5.0
_WANTED_INTERVAL_MS: Final = 200.0
# Maximum of a confined worker's frames without tensors: reports, log lines, configurations.
_MAX_JSON_BYTES: Final = 16 << 20


def worker_environ(environ: dict[str, str], threads: int) -> dict[str, str]:
    """Return a worker's environment variables.

    Numerical libraries are limited if they would start more than `threads` threads. A limit that
    environ already has is kept.
    """
    if 0 < threads < len(os.sched_getaffinity(0)):
        # OpenBLAS, MKL and torch read this variable too.
        return {"OMP_NUM_THREADS": str(threads), **environ}
    return environ


class Process(Protocol):
    """A process, as subprocess.Popen has it."""

    @property
    def pid(self) -> int:
        """Process id."""

    def poll(self) -> int | None:
        """Return the return code, negative for a signal; `None` if the process has not ended."""

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end, and return the code; raise subprocess.TimeoutExpired after timeout."""


# Starts a confined process. Arguments: the policy, its variables, its descriptors, its output.
Fork = Callable[[bytes, Mapping[str, str], tuple[int, ...], int], Process]


class WorkerProcess:
    """One worker, from its start to kill()."""

    def __init__(  # noqa: PLR0913, PLR0915 - some arguments are passed by keyword
        self,
        python: str,
        model: str,
        on_notification: Callable[[int, bytearray], None],
        calls: ModelCalls | None = None,
        *,
        serves_stream: bool = False,
        threads: int = 0,
        confinement: Confinement | None = None,
        fork: Fork | None = None,
        name: str = "",
    ) -> None:
        """Start a worker. Raise Internal if the system cannot start the process.

        serves_stream: python is Nereid's own interpreter. threads: for numerical libraries; 0 lets
        them decide. fork: starts the process of a confinement in place of an interpreter. name: the
        instance, for the lines that a confined worker prints.
        """
        self.calls = calls or ModelCalls(None, 0)
        self._model = model
        self._on_notification = on_notification
        # Temporary files of a confined worker.
        self._temporary: TemporaryDirectory | None = None
        self.is_confined = confinement is not None
        self.has_unix_sockets = confinement is None or confinement.has_unix_sockets
        # Number of the worker's end of a socket on which a confined worker gets its connection.
        self.descriptors_for_worker: int | None = None
        self._to_worker: socket.socket | None = None
        ours, theirs = socket.socketpair()
        their_receiver: socket.socket | None = None
        memory = os.memfd_create("nereid-worker", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(memory, mmap.PAGESIZE)
            # Reading a page that the model has cut off would kill this process (SIGBUS).
            fcntl.fcntl(memory, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL)
            self._last_batch = mmap.mmap(memory, mmap.PAGESIZE)
            descriptors: tuple[int, ...] = (theirs.fileno(), memory)
            arguments = [*map(str, descriptors), str(os.getpid())]
            if serves_stream and confinement is not None:
                self._to_worker, their_receiver = socket.socketpair()
                self.descriptors_for_worker = their_receiver.fileno()
                descriptors += (self.descriptors_for_worker,)
            command = (
                [python, _DIRECT_WORKER, *arguments, SOURCES]
                if serves_stream
                else [python, _WORKER, *arguments]
            )
            environ = worker_environ(public_environ(), threads)
            self._process: Process
            if confinement is None:
                self._process = start_process(command, environ, descriptors)
            else:
                self._temporary = TemporaryDirectory.make(SANDBOX)
                policy = confinement.policy(command, self._temporary.path)
                environ = confinement.environ(environ, self._temporary.path)
                with WORKER_OUTPUT.pipe(name or model) as output:
                    self._process = (fork or _launch)(policy, environ, descriptors, output)
                WORKER_GROUPS.watch_group(self._process.pid)
            # This descriptor is readable once the process has ended.
            self._process_end = os.pidfd_open(self._process.pid)
        except OSError as error:
            self._remove_temporary()
            self._close_sender()
            ours.close()
            self.calls.close()
            raise Internal(f"no worker for model '{model}' can be started: {error}") from error
        finally:
            theirs.close()
            if their_receiver is not None:
                their_receiver.close()
            os.close(memory)
        self.channel = (
            Channel(ours)
            if confinement is None
            else Channel(ours, confinement.frame_bytes, _MAX_JSON_BYTES)
        )
        self.calls.try_send = self._try_send_response
        self.calls.worker_pid = self._process.pid
        # One is readable when frames arrive, when the process ends, or when other threads have left
        # messages for the worker.
        self.descriptors = self.channel.fileno(), self._process_end, self.calls.fileno()
        self._poll = select.poll()
        for descriptor in self.descriptors:
            self._poll.register(descriptor, select.POLLIN)
        STOPPED_WORKERS.watch_worker(self._process.pid, self._model)

    @property
    def pid(self) -> int:
        """Process id of the worker."""
        return self._process.pid

    @property
    def last_batch(self) -> int:
        """Number of the batch that the worker began last; also known after the worker's end."""
        number: int = _LAST_BATCH.unpack_from(self._last_batch, 0)[0]
        return number

    def forget_last_batch(self) -> None:
        """Forget the last batch. Call this while the worker serves no stream."""
        _LAST_BATCH.pack_into(self._last_batch, 0, 0)

    @property
    def running_requests(self) -> tuple[int, ...]:
        """Ids of the requests that the worker executes from its own stream."""
        (count,) = _RUNNING.unpack_from(self._last_batch, _LAST_BATCH.size)
        offset = _LAST_BATCH.size + _RUNNING.size
        count = min(count, (len(self._last_batch) - offset) // _RUNNING.size)
        ids: tuple[int, ...] = unpack_from(f"<{count}Q", self._last_batch, offset)
        return ids

    @property
    def ended(self) -> bool:
        """True if the process has ended, even if a child process still holds the socket."""
        return self._process.poll() is not None

    def send_frame(self, kind: int, parts: Sequence[Any]) -> None:
        """Write a frame.

        Raises wire.LostError if the socket is closed, wire.SlowError if the worker has read nothing
        for 60 s, wire.WireError for a too large frame.
        """
        self.channel.send(kind, parts, _SEND_TIMEOUT_S)

    def send_requests(self, kind: int, parts: Sequence[Any]) -> None:
        """Write a frame with requests; raise InvalidArgument for a too large frame."""
        try:
            self.send_frame(kind, parts)
        except wire.WireError as error:
            raise InvalidArgument(
                f"the requests of a batch of model '{self._model}' are larger together than what a"
                " worker can be sent",
                accepted=True,
            ) from error

    def send_descriptor(self, descriptor: int) -> None:
        """Give a confined worker a descriptor. Errors are those of send_frame()."""
        assert self._to_worker is not None, "only confined workers that serve streams get any"
        try:
            socket.send_fds(self._to_worker, [b"1"], [descriptor], socket.MSG_DONTWAIT)
        except BlockingIOError as error:
            raise wire.SlowError from error
        except OSError as error:
            raise wire.LostError from error

    def send_json(self, kind: int, message: Any) -> None:
        """Write a frame with a JSON body. Errors are those of send_frame()."""
        self.send_frame(kind, [json.dumps(message).encode()])

    def wait_for(
        self,
        wanted: int,
        timeout_s: float | None,
        is_wanted: Callable[[], bool] | None = None,
    ) -> bytearray:
        """Wait for the next frame of this kind and return its body.

        is_wanted is called every 200 ms. Raises Internal if it returns False, the worker fails or
        ends, or timeout_s is over.
        """
        until = None if timeout_s is None else time.monotonic() + timeout_s
        try:
            while True:
                kind, body = self.receive(until, is_wanted)
                if kind == wanted:
                    return body
                if kind == wire.FAILED:
                    raise Internal(well_formed(json.loads(bytes(body))))
                self.on_frame(kind, body)
        except wire.SlowError:
            raise Internal(
                f"the worker of model '{self._model}' did not get ready within {timeout_s:g} s"
            ) from None
        except (wire.LostError, wire.WireError, ValueError) as error:
            raise Internal(self.death_reason()) from error

    def receive(
        self, until: float | None = None, is_wanted: Callable[[], bool] | None = None
    ) -> tuple[int, bytearray]:
        """Wait for the next frame, until a time (time.monotonic), as wait_for() does.

        Raises wire.LostError if the worker has ended, wire.SlowError if it is too late,
        wire.WireError for a malformed frame.
        """
        while (frame := self.channel.receive_nowait()) is None:
            self.send_call_responses()
            left_s = None if until is None else until - time.monotonic()
            if left_s is not None and left_s <= 0:
                raise wire.SlowError
            wait_ms = None if left_s is None else left_s * 1000 + 1
            if is_wanted is not None:
                if not is_wanted():
                    raise Internal(f"the worker of model '{self._model}' is not wanted any more")
                wait_ms = (
                    _WANTED_INTERVAL_MS if wait_ms is None else min(wait_ms, _WANTED_INTERVAL_MS)
                )
            self._poll.poll(wait_ms)
            if self.ended and (frame := self.channel.receive_nowait()) is None:
                raise wire.LostError
            if frame is not None:
                break
        return frame

    def arrived_frames(self, ready: Collection[int]) -> Iterator[tuple[int, bytearray]]:
        """Yield the frames that have arrived, then raise wire.LostError if the worker has ended."""
        socket, process_end, _ = self.descriptors
        ended = process_end in ready
        # The next poll reports any further data, so one read is enough. If the worker has ended,
        # there is no next poll: read all frames now.
        while (ended or socket in ready) and self.channel.read_available():
            while (frame := self.channel.buffered_frame()) is not None:
                yield frame
            if not ended:
                return
        if ended:
            raise wire.LostError

    def on_frame(self, kind: int, body: bytearray) -> None:
        """Handle a frame that does not concern a batch."""
        if kind == wire.CALL:
            self.calls.start_call(wire.read_call(body))
        else:
            self._on_notification(kind, body)

    @contextlib.contextmanager
    def loss_reported(self) -> Iterator[None]:
        """Turn connection errors into ModelLostError; kill a worker that broke the protocol."""
        try:
            yield
        except wire.WireError as error:
            # The model itself has written to the worker's socket.
            self.terminate()
            raise ModelLostError(f"malformed message from its worker: {error}") from error
        except wire.SlowError as error:
            self.terminate()
            raise ModelLostError("its worker has stopped reading") from error
        except wire.LostError as error:
            raise ModelLostError(self.death_reason()) from error

    def send_call_responses(self) -> None:
        """Send the responses to calls that other threads have left to this thread."""
        for response in self.calls.collect_responses():
            self.send_frame(wire.CALL_RESPONSE, wire.call_parts(response))
            self.calls.note_sent()

    def _try_send_response(self, response: wire.Call) -> bool:
        return self.channel.try_send(wire.CALL_RESPONSE, wire.call_parts(response))

    def death_reason(self) -> str:
        """Return a text that says how a lost worker ended."""
        try:
            code = self._process.wait(_EXIT_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            return f"the worker of model '{self._model}' ended its connection"
        how = f"exit code {code}" if code >= 0 else f"signal {_signal_name(-code)}"
        if code == -signal.SIGXCPU:
            how += ": its CPU time is used up (--sandbox-cpu-seconds)"
        return f"the worker of model '{self._model}' ended with {how}"

    def shut_down(self) -> None:
        """Have the worker finalise its model and end; kill it if that takes too long."""
        with contextlib.suppress(Internal, wire.LostError, wire.SlowError, wire.WireError):
            if not self.ended:
                self.channel.send(wire.FINALIZE, [], _FINALIZE_TIMEOUT_S)
                self.wait_for(wire.FINALIZED, _FINALIZE_TIMEOUT_S)
        self.kill()

    def terminate(self) -> None:
        """Kill the process. Frames that it had sent before can still be read."""
        with contextlib.suppress(ProcessLookupError):
            # The process group includes the processes that the model has started.
            os.killpg(self._process.pid, signal.SIGKILL)

    def kill(self) -> None:
        """Kill the process and free everything that belongs to it."""
        STOPPED_WORKERS.forget_worker(self._process.pid)
        self.terminate()
        WORKER_GROUPS.forget_group(self._process.pid)
        self._process.wait()
        # Calls are closed before the channel: other threads send call responses over it.
        self.calls.close()
        self.channel.close()
        os.close(self._process_end)
        self._last_batch.close()
        self._close_sender()
        self._remove_temporary()

    def _close_sender(self) -> None:
        if self._to_worker is not None:
            self._to_worker.close()

    def _remove_temporary(self) -> None:
        temporary, self._temporary = self._temporary, None
        if temporary is not None:
            temporary.release()


def start_process(
    command: list[str],
    environ: Mapping[str, str],
    descriptors: tuple[int, ...],
    output: int | None = None,
) -> subprocess.Popen[bytes]:
    """Start a worker, or a server that forks workers; output: where it prints to."""
    # In its own session, the worker gets no signals of the terminal, such as Ctrl-C.
    return subprocess.Popen(
        command,
        pass_fds=descriptors,
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        start_new_session=True,
    )


def _launch(
    policy: bytes, environ: Mapping[str, str], descriptors: tuple[int, ...], output: int
) -> Process:
    """Start the command of a policy in its confinement."""
    file = policy_descriptor(policy)
    try:
        return start_process(launcher_command(file), environ, (*descriptors, file), output)
    finally:
        os.close(file)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)
