"""Starts and ends the worker's process; the __main__ modules call it."""

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

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_SET_PARENT_DEATH_SIGNAL = 1


def main(run: Callable[[Channel, Any], int]) -> None:
    """Run the worker that the command line describes; see run_process()."""
    descriptor, memory, parent = map(int, sys.argv[1:4])
    sys.argv = [""]
    run_process(run, descriptor, memory, parent)


def run_process(
    run: Callable[[Channel, Any], int], descriptor: int, memory: int, parent: int
) -> None:
    """Run a worker, then end the process with the code that `run` returns.

    run: takes the channel, and the memory for the number of the last batch. parent: the process id
    of the parent process, with which this process ends.
    """
    _die_with_parent(parent)
    last_batch = mmap.mmap(memory, mmap.PAGESIZE)
    os.close(memory)
    # Child processes of the model must not keep the connection open.
    os.set_inheritable(descriptor, False)
    channel = Channel(socket.socket(fileno=descriptor))
    code = 1
    try:
        code = run(channel, last_batch)
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
