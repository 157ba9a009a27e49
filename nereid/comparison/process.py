"""The process that compares exchanges, so that those who serve requests do not."""

# layout: not covered, has a process, integration tests reach it

from __future__ import annotations

import asyncio
import contextlib
import os
import pickle
import socket
import sys
from dataclasses import dataclass
from struct import Struct
from typing import TYPE_CHECKING, Any, Final

from nereid.core.errors import Unavailable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nereid.comparison.rules import Rules
    from nereid.comparison.tally import TallyOptions


@dataclass(frozen=True, slots=True)
class ReportQuestion:
    """Question for the report; `refused` has the numbers of refused messages by model."""

    refused: dict[str, int]


_SIZE: Final = Struct("<Q")
_NICENESS: Final = 10
# Further models are counted under no name.
_MAX_REFUSED: Final = 1000
FULL: Final = "the queue was full"


class ReportProcess:
    """Owner of a process that makes a report of what it is sent, and that is never waited for.

    It belongs to one event loop. What does not fit into the queue, or finds no process, is counted
    as not compared.
    """

    def __init__(self, module: str, start_message: object, *, max_queued_bytes: int) -> None:
        """Create the owner; `module` is run with the socket's descriptor as its argument."""
        self._module = module
        self._start_message = start_message
        self._max_queued_bytes = max_queued_bytes
        self._process: asyncio.subprocess.Process | None = None
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter | None = None
        # Number of refused messages by model, until the process is sent it.
        self._refused: dict[str, int] = {}
        self._replies = asyncio.Lock()

    async def start(self) -> None:
        """Start the process. May raise OSError."""
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", self._module, str(theirs.fileno())),
                pass_fds=(theirs.fileno(),),
                stdin=asyncio.subprocess.DEVNULL,
                # Signals of a terminal are meant for the owner alone.
                start_new_session=True,
                env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )
        self._reader, self._writer = await asyncio.open_unix_connection(sock=ours)
        self._send(self._start_message)

    def submit(self, model: str, message: object) -> bool:
        """Queue a message; return False if it is only counted, because the queue is full."""
        writer = self._writer
        if (
            writer is None
            or writer.is_closing()
            or writer.transport.get_write_buffer_size() > self._max_queued_bytes
        ):
            if model not in self._refused and len(self._refused) >= _MAX_REFUSED:
                model = ""
            self._refused[model] = self._refused.get(model, 0) + 1
            return False
        self._send(message)
        return True

    async def document(self) -> dict[str, Any]:
        """Return the report of all that was submitted; raise Unavailable without a process."""
        refused, self._refused = self._refused, {}
        document: dict[str, Any] = await self.ask(ReportQuestion(refused))
        return document

    async def ask(self, question: object) -> Any:
        """Send a question, and return the reply; raise Unavailable without a process."""
        async with self._replies:
            if self._writer is None:
                raise Unavailable("no process compares responses")
            self._send(question)
            try:
                return await receive(self._reader)
            except (OSError, EOFError) as error:
                raise Unavailable("the process that compares responses has ended") from error

    async def close(self) -> None:
        """End the process."""
        if self._writer is not None:
            self._writer.transport.abort()
            self._writer = None
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()

    def _send(self, message: object) -> None:
        assert self._writer is not None
        self._writer.writelines(pack(message))


class ComparisonProcess(ReportProcess):
    """Owner of a process that compares exchanges."""

    def __init__(self, rules: Rules, options: TallyOptions, *, max_queued_bytes: int) -> None:
        super().__init__("nereid.comparison", (rules, options), max_queued_bytes=max_queued_bytes)


def pack(message: object) -> Sequence[bytes]:
    """Return a message as bytes to write."""
    # Unpickling is safe: both ends are ours, and no other process has the socket.
    pickled = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    return _SIZE.pack(len(pickled)), pickled


async def receive(reader: asyncio.StreamReader) -> Any:
    """Return the next message; raise EOFError or OSError if the other end is closed."""
    (size,) = _SIZE.unpack(await reader.readexactly(_SIZE.size))
    return pickle.loads(await reader.readexactly(size))  # noqa: S301 - see pack()


async def compare_until_closed(descriptor: int) -> None:
    """Compare what is received on a socket until its other end is closed."""
    from nereid.comparison.responses import Exchange  # noqa: PLC0415
    from nereid.comparison.tally import Tally  # noqa: PLC0415 - the owner needs no numpy

    os.nice(_NICENESS)
    reader, writer = await asyncio.open_unix_connection(sock=socket.socket(fileno=descriptor))
    with contextlib.suppress(OSError, EOFError):
        tally = Tally(*await receive(reader))
        while True:
            message = await receive(reader)
            if isinstance(message, Exchange):
                tally.add(message)
                continue
            for model, number in message.refused.items():
                tally.add_not_compared(model, FULL, number)
            writer.writelines(pack(tally.document()))
