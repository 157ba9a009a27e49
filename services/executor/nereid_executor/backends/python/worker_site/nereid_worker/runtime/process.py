"""Starts and ends the worker's process; nereid_worker.__main__ calls it."""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
import socket
import sys
import traceback
from typing import TYPE_CHECKING

from ..protocol import wire
from ..protocol.channel import Channel
from .printed_lines import finish_lines
from .worker import run_worker

if TYPE_CHECKING:
    from .serving import StreamServer

_SET_PARENT_DEATH_SIGNAL = 1


def main(stream_server: type[StreamServer] | None = None) -> None:
    """Run the worker, then end the process."""
    descriptor, memory, parent = map(int, sys.argv[1:4])
    _die_with_parent(parent)
    sys.argv = [""]
    last_batch = mmap.mmap(memory, mmap.PAGESIZE)
    os.close(memory)
    # Child processes of the model must not keep the connection open.
    os.set_inheritable(descriptor, False)
    channel = Channel(socket.socket(fileno=descriptor))
    code = 1
    try:
        code = run_worker(channel, last_batch, stream_server)
    except wire.LostError:
        # The executor has ended, so the worker ends too.
        pass
    except BaseException:
        traceback.print_exc()
    finally:
        finish_lines()
        # Threads of the model that never end would keep the process alive.
        os._exit(code)


def _die_with_parent(parent: int) -> None:
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        libc.prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)
