"""The process that compares exchanges, so that those who serve requests do not."""

# layout: not covered, has a process, integration tests reach it

from __future__ import annotations

import asyncio
import contextlib
import os
import pickle
import socket
import sys
from collections import Counter, deque
from dataclasses import dataclass
from struct import Struct
from typing import TYPE_CHECKING, Any, Final, Protocol, Self

from nereid.core.errors import Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nereid.comparison.checkpoint import Parts
    from nereid.comparison.responses import Exchange
    from nereid.comparison.rules import Rules
    from nereid.comparison.tally import Tally, TallyOptions


@dataclass(frozen=True, slots=True)
class ReportQuestion:
    """Question for the report; `refused` has the numbers of refused messages by model."""

    refused: dict[str, int]


@dataclass(frozen=True, slots=True)
class CheckpointQuestion:
    """Question for a Checkpoint alone; each report comes with one as well."""


_SIZE: Final = Struct("<Q")
# Size of the pickled messages, and number of their buffers.
_SIZES: Final = Struct("<QQ")
_NICENESS: Final = 10
# Further models are counted under no name.
_MAX_REFUSED: Final = 1000
_BATCH_S: Final = 0.005
_BATCH_BYTES: Final = 1 << 17
_MAX_BATCH: Final = 64
FULL: Final = "the queue was full"
_ENDED: Final = "the process that compares responses has ended"


class ReportProcess:
    """Owner of a process that makes a report of what it is sent, and that is never waited for.

    It belongs to one event loop. What does not fit into the queue, or finds no process, is counted
    as not compared. Reports have a connection of their own, so that they do not wait in the queue.
    A process that is started anew goes on with the counts of the last checkpoint.
    """

    def __init__(self, module: str, start_message: object, *, max_queued_bytes: int) -> None:
        """Create the owner; `module` is run with two descriptors, for serve_report()."""
        self._module = module
        self._start_message = start_message
        self._max_queued_bytes = max_queued_bytes
        self._process: asyncio.subprocess.Process | None = None
        self._messages: _Connection | None = None
        self._reports: _Connection | None = None
        # Number of refused messages by model, until the process is sent it.
        self._refused: dict[str, int] = {}
        self._kept: Parts = {}
        self._settled: Counter[str] = Counter()
        # See Checkpoint.
        self.settled_through = 0

    async def start(self) -> None:
        """Start the process. May raise OSError."""
        pairs = socket.socketpair(), socket.socketpair()
        descriptors = [theirs.fileno() for _, theirs in pairs]
        try:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", self._module, *map(str, descriptors)),
                pass_fds=descriptors,
                stdin=asyncio.subprocess.DEVNULL,
                # Signals of a terminal are meant for the owner alone.
                start_new_session=True,
                env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )
        except BaseException:
            for ours, _ in pairs:
                ours.close()
            raise
        finally:
            for _, theirs in pairs:
                theirs.close()
        self._messages, self._reports = [await _Connection.open(ours) for ours, _ in pairs]
        self._messages.send((self._start_message, self._kept))

    async def wait_ended(self) -> None:
        """Wait until the process has ended; start() may then start another one."""
        if self._process is not None:
            await self._process.wait()

    def submit(self, model: str, message: object, size_bytes: int) -> bool:
        """Queue a message; return False if it is only counted, because the queue is full.

        size_bytes: about its size. Small ones wait some milliseconds for others.
        """
        messages = self._messages
        if messages is None or not messages.takes(self._max_queued_bytes):
            if model not in self._refused and len(self._refused) >= _MAX_REFUSED:
                model = ""
            self._refused[model] = self._refused.get(model, 0) + 1
            return False
        messages.send(message, size_bytes)
        return True

    async def document(self) -> dict[str, Any]:
        """Return the report so far; raise Unavailable without a process."""
        refused, self._refused = self._refused, {}
        try:
            document: dict[str, Any] = await self._ask_report(ReportQuestion(refused))
        except Unavailable:
            for model, number in refused.items():
                self._refused[model] = self._refused.get(model, 0) + number
            raise
        return document

    async def checkpoint(self) -> None:
        """Keep the counts so far; raise Unavailable without a process."""
        await self._ask_report(CheckpointQuestion())

    def take_settled(self) -> dict[str, int]:
        """Return the settled messages by model, of the checkpoints since the last call."""
        settled, self._settled = self._settled, Counter()
        return settled

    async def _ask_report(self, question: object) -> Any:
        connection = self._reports
        document, checkpoint = await _ask(connection, question)
        if connection is not self._reports:
            # The owner has given up what this process had not reported.
            raise Unavailable(_ENDED)
        self._kept.update(checkpoint.parts)
        self._settled.update(checkpoint.settled)
        self.settled_through = max(self.settled_through, checkpoint.settled_through)
        return document

    async def ask_in_order(self, question: object) -> Any:
        """Return the reply to a question behind all messages; raise Unavailable."""
        return await _ask(self._messages, question)

    async def close(self) -> None:
        """End the process."""
        for connection in (self._messages, self._reports):
            if connection is not None:
                connection.close()
        self._messages = self._reports = None
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()


class _Connection:
    """One end of a connection between the owner and the process."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._transport = writer.transport
        # Messages of some milliseconds are pickled and written together, which costs a fraction.
        self._unsent: list[object] = []
        self._unsent_bytes = 0
        self._flush_timer: asyncio.TimerHandle | None = None
        self._received: deque[Any] = deque()
        # Held by whoever waits for a reply.
        self.lock = asyncio.Lock()

    @classmethod
    async def open(cls, sock: socket.socket) -> Self:
        return cls(*await asyncio.open_unix_connection(sock=sock))

    def takes(self, max_queued_bytes: int) -> bool:
        """Return whether the queue takes another message."""
        transport = self._transport
        return not transport.is_closing() and (
            transport.get_write_buffer_size() <= max_queued_bytes
        )

    def send(self, message: object, size_bytes: int = _BATCH_BYTES) -> None:
        """Queue a message, of which values of pickle.PickleBuffer are not copied.

        By default it is written at once, with those that wait.
        """
        self._unsent.append(message)
        self._unsent_bytes += size_bytes
        if self._unsent_bytes >= _BATCH_BYTES or len(self._unsent) >= _MAX_BATCH:
            self.flush()
        elif self._flush_timer is None:
            self._flush_timer = asyncio.get_running_loop().call_later(_BATCH_S, self.flush)

    def flush(self) -> None:
        """Write all queued messages."""
        if self._flush_timer is not None:
            self._flush_timer.cancel()
            self._flush_timer = None
        unsent, self._unsent = self._unsent, []
        self._unsent_bytes = 0
        # uvloop raises RuntimeError for a closed transport; receive() reports the end.
        if not unsent or self._transport.is_closing():
            return
        # Unpickling is safe: both ends are ours, and no other process has the socket.
        buffers: list[pickle.PickleBuffer] = []
        pickled = pickle.dumps(unsent, pickle.HIGHEST_PROTOCOL, buffer_callback=buffers.append)
        blobs = [buffer.raw() for buffer in buffers]
        sizes = b"".join(_SIZE.pack(len(blob)) for blob in blobs)
        head = _SIZES.pack(len(pickled), len(blobs))
        self._writer.writelines((head + sizes + pickled, *blobs))

    async def receive(self) -> Any:
        """Return the next message; raise EOFError or OSError if the other end is closed."""
        if not self._received:
            read = self._reader.readexactly
            size, count = _SIZES.unpack(await read(_SIZES.size))
            sizes = await read(_SIZE.size * count)
            pickled = await read(size)
            blobs = [await read(blob_size) for (blob_size,) in _SIZE.iter_unpack(sizes)]
            self._received.extend(pickle.loads(pickled, buffers=blobs))  # noqa: S301 - see flush()
        return self._received.popleft()

    def close(self) -> None:
        """Close the connection at once."""
        if self._flush_timer is not None:
            self._flush_timer.cancel()
        self._transport.abort()


async def _ask(connection: _Connection | None, question: object) -> Any:
    if connection is None:
        raise Unavailable("no process compares responses")
    async with connection.lock:
        connection.send(question)
        try:
            return await connection.receive()
        except (OSError, EOFError) as error:
            raise Unavailable(_ENDED) from error


class Reporter(Protocol):
    """The process's part: it counts what it is sent."""

    @property
    def tally(self) -> Tally:
        """The counts of the report."""
        ...

    async def on_message(self, message: Any) -> object | None:
        """Handle a message; return the reply to a question, or None."""
        ...

    async def close(self) -> None:
        """End what is in flight."""
        ...


async def serve_report(
    descriptors: Sequence[str], make_reporter: Callable[[Any], Reporter]
) -> None:
    """Serve the owner until it closes its connections; the first message is for make_reporter."""
    os.nice(_NICENESS)
    messages, reports = [
        await _Connection.open(socket.socket(fileno=int(number))) for number in descriptors
    ]
    with contextlib.suppress(OSError, EOFError):
        start_message, parts = await messages.receive()
        reporter = make_reporter(start_message)
        reporter.tally.restore(parts)
        reports_task = asyncio.ensure_future(_send_reports(reports, reporter.tally))
        try:
            while True:
                reply = await reporter.on_message(await messages.receive())
                if reply is not None:
                    messages.send(reply)
                # Messages that have arrived are received without a turn of the loop.
                await asyncio.sleep(0)
        finally:
            reports_task.cancel()
            await reporter.close()


async def _send_reports(reports: _Connection, tally: Tally) -> None:
    with contextlib.suppress(OSError, EOFError):
        while True:
            question = await reports.receive()
            document = None
            if isinstance(question, ReportQuestion):
                for model, number in question.refused.items():
                    tally.add_not_compared(model, FULL, number)
                document = tally.document()
            reports.send((document, tally.take_checkpoint()))


class ComparisonProcess(ReportProcess):
    """Owner of a process that compares exchanges."""

    def __init__(self, rules: Rules, options: TallyOptions, *, max_queued_bytes: int) -> None:
        super().__init__("nereid.comparison", (rules, options), max_queued_bytes=max_queued_bytes)


class ComparingReporter:
    """Reporter of exchanges."""

    def __init__(self, start_message: tuple[Rules, TallyOptions]) -> None:
        from nereid.comparison.tally import Tally  # noqa: PLC0415 - the owner needs no numpy

        self.tally = Tally(*start_message)

    async def on_message(self, message: Exchange) -> None:
        """Compare an exchange."""
        self.tally.add(message)

    async def close(self) -> None:
        """Do nothing: nothing is in flight."""
