"""A server in a process of its own, whose memory and descriptors a test can measure."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[3]
_START_S = 60


@dataclass
class Measured:
    """The process, and the addresses that it printed."""

    addresses: list[str]
    process: asyncio.subprocess.Process

    def peak_mib(self) -> float:
        """The peak of its resident memory."""
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(text.partition("VmHWM:")[2].split()[0]) / 1024

    def open_files(self) -> int:
        return len(list(Path(f"/proc/{self.process.pid}/fd").iterdir()))


@contextlib.asynccontextmanager
async def measured(module: str) -> AsyncIterator[Measured]:
    """Run a module that prints its addresses on one line and ends when its standard input does."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", module),
        cwd=ROOT,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        line = await asyncio.wait_for(process.stdout.readline(), _START_S)
        yield Measured(line.decode().split(), process)
        process.stdin.write_eof()
        assert await asyncio.wait_for(process.wait(), _START_S) == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
