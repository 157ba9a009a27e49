"""Signs of life: heartbeats of a service's event loop, and a check for stopped processes.

A full pipe is no error: the supervisor does not read it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import MutableMapping

VARIABLE: Final = "NEREID_HEARTBEAT_FD"
INTERVAL_S: Final = 1.0


def start_heartbeat(environ: MutableMapping[str, str]) -> None:
    """Send heartbeats from the running event loop, if the environment asks for it."""
    text = environ.pop(VARIABLE, "")
    if not text.isdecimal():
        return
    descriptor = int(text)
    with contextlib.suppress(OSError):
        os.set_inheritable(descriptor, False)
        os.set_blocking(descriptor, False)
        _beat(asyncio.get_running_loop(), descriptor)


def _beat(loop: asyncio.AbstractEventLoop, descriptor: int) -> None:
    try:
        os.write(descriptor, b".")
    except BlockingIOError:
        pass
    except OSError:
        return  # the supervisor has ended, so this process will end
    loop.call_later(INTERVAL_S, _beat, loop, descriptor)


def is_stopped(pid: int) -> bool:
    """Return whether a signal has stopped a process; False if the system does not tell."""
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] == b"T"
    except (OSError, IndexError):
        return False
