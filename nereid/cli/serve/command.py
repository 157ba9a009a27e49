"""`nereid serve`: the whole mesh on one machine, as child processes over unix sockets.

nereid.cli.serve.plan decides which children there are and which flags each gets. It runs in a
process of its own, because it imports all services' settings, and checks everything before anything
starts.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import resource
import signal
import subprocess
import sys
import tempfile
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import FrameType


# One package that each service needs.
_REQUIRED = ("blake3", "httptools", "numpy")
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def main(argv: Sequence[str]) -> int:
    """Start the mesh and keep it running until a signal; the exit code."""
    missing = [name for name in _REQUIRED if importlib.util.find_spec(name) is None]
    if missing:
        names = ", ".join(missing)
        text = f"{names} is missing: the extra [serve] brings all that is needed here"
        print(f"nereid serve: {text}", file=sys.stderr)
        return 2
    _raise_descriptor_limit()
    for number in _SIGNALS:
        signal.signal(number, _exit_early)
    # A signal between the creation of the directory and the with block would leave it behind.
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    with tempfile.TemporaryDirectory(prefix="nereid-") as directory:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        code, planned, run_plan = _plan_and_import(json.dumps([directory, *argv]).encode())
        if code or not planned.startswith(b"{"):
            sys.stdout.buffer.write(planned)
            return code
        return run_plan(planned)


def _plan_and_import(request: bytes) -> tuple[int, bytes, Callable[[bytes], int]]:
    """The planning process's exit code and output, and what runs a plan: imported meanwhile."""
    # The request is not its argv: there may be secrets in it.
    arguments = [sys.executable, "-m", "nereid.cli.serve.plan"]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as planning:
        try:
            assert planning.stdin is not None
            planning.stdin.write(request)
            planning.stdin.close()
            planning.stdin = None
            from nereid.cli.serve.planned_mesh import run_plan  # noqa: PLC0415

            planned, _ = planning.communicate()
        except BaseException:
            planning.kill()
            raise
    return planning.returncode, planned, run_plan


def _raise_descriptor_limit() -> None:
    """Each client costs a descriptor: allow the children all that the system allows."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _exit_early(_number: int, _frame: FrameType | None) -> NoReturn:
    """Before the children start: unwind, so that the directory and the plan process go, too."""
    sys.exit(0)
