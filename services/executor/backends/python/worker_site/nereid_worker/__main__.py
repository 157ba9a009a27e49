"""`python <this directory> <socket> <memory> <parent>`: a worker, started by its executor.

socket and memory are descriptors that the executor left open: what both speak over, and where the
worker says which batch it began last. parent: the executor's process id.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
import socket
import sys
import traceback
from pathlib import Path

# Models shall see the API's modules, and none of the worker's own beside them.
sys.path[0] = str(Path(__file__).resolve().parents[1])

_SET_PARENT_DEATH_SIGNAL = 1


def main() -> None:
    """The process."""
    descriptor, memory, parent = map(int, sys.argv[1:4])
    _die_with(parent)
    sys.argv = [""]
    from nereid_worker import channel, wire, worker  # noqa: PLC0415 - the path is set just above

    began = mmap.mmap(memory, mmap.PAGESIZE)
    os.close(memory)
    # What the model starts shall not keep the connection open.
    os.set_inheritable(descriptor, False)
    connection = channel.Channel(socket.socket(fileno=descriptor))
    code = 1
    try:
        code = worker.work(connection, began)
    except wire.LostError:
        # Nobody is left to serve.
        pass
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        # Threads of the model's that never end must not keep the process.
        os._exit(code)


def _die_with(parent: int) -> None:
    """Have the kernel kill this process when its executor is gone, however it went."""
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        libc.prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


if __name__ == "__main__":
    main()
