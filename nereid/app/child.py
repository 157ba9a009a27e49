"""Program of a mesh's child process: `nereid serve`, which ends with the process that started it.

usage: python -m nereid.app.child PARENT FLAGS
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

from nereid.cli import main

_SET_PARENT_DEATH_SIGNAL = 1


def _run() -> None:
    parent = int(sys.argv.pop(1))
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent:
        # The parent has ended before the system call.
        return
    sys.argv[1:1] = ["serve"]
    main()


if __name__ == "__main__":
    _run()
