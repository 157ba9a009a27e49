"""The command `nereid serve`: a whole mesh on one machine, as child processes over unix sockets.

A separate process plans, because planning imports the settings of all services. Meanwhile the
likely children import their modules (nereid_mesh.serve.early_start).
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import resource
import signal
import sys
from typing import TYPE_CHECKING, Final, NoReturn

from nereid.cli import CLOSED_PIPE
from nereid_mesh.serve.early_start import start_likely_programs

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence
    from types import FrameType

    from nereid.core.files.temporary_directories import TemporaryDirectory
    from nereid_mesh.serve.child_process import StandbyProcess
    from nereid_mesh.serve.plan import Plan


SUMMARY: Final = "start a whole mesh on this machine"
# Each of these packages is required by one service.
_REQUIRED = ("blake3", "httptools", "numpy")
_SIGNALS = (signal.SIGTERM, signal.SIGINT)
# Arguments of Triton's image begin with its program, as in KServe's own runtime.
_TRITONSERVER: Final = "tritonserver"
# This is enough for the files and sockets of a mesh with a handful of clients.
_MIN_DESCRIPTORS = 256


def make_parser() -> argparse.ArgumentParser:
    """Return the command's flags, for shell completion."""
    from nereid_mesh.serve.planning import make_parser  # noqa: PLC0415 - imports all settings

    return make_parser()


def main(argv: Sequence[str]) -> int:
    """Start the mesh and keep it running until a signal arrives; return the exit code."""
    if argv and argv[0] == _TRITONSERVER:
        argv = argv[1:]
    missing = [name for name in _REQUIRED if importlib.util.find_spec(name) is None]
    if missing:
        names = ", ".join(missing)
        text = f"no module of {names}: pip install 'nereid-mesh[serve]'"
        print(f"nereid serve: {text}", file=sys.stderr)
        return 2
    allowed = _raise_descriptor_limit()
    if allowed < _MIN_DESCRIPTORS:
        text = (
            f"a process may open {allowed} files (ulimit -Hn), and needs at least"
            f" {_MIN_DESCRIPTORS}: each client costs one"
        )
        print(f"nereid serve: {text}", file=sys.stderr)
        return 2
    for number in _SIGNALS:
        signal.signal(number, _exit_early)
    early = start_likely_programs(argv, os.environ)
    try:
        return _serve(argv, early)
    finally:
        for standby in early:
            standby.kill()


def _serve(argv: Sequence[str], early: list[StandbyProcess]) -> int:
    # Import only after the first processes have been started.
    from nereid.core.files import temporary_directories  # noqa: PLC0415

    # A signal between the creation of the directory and the with block would leave it behind.
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    with temporary_directories.TemporaryDirectory.make(temporary_directories.SERVE) as directory:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        return _plan_and_run(directory, argv, early)


def _plan_and_run(
    directory: TemporaryDirectory, argv: Sequence[str], early: list[StandbyProcess]
) -> int:
    # This import takes longer than starting the first processes.
    from nereid_mesh.serve.planned_mesh import run_plan  # noqa: PLC0415

    code, plan = _plan(str(directory.path), argv)
    return code if plan is None else run_plan(plan, early, directory)


def _plan(directory: str, argv: Sequence[str]) -> tuple[int, Plan | None]:
    import pickle  # noqa: PLC0415 - not before the first processes have been started

    read_end, write_end = os.pipe()
    # A fork is quick, because most imports are done, and safe, because there is no other thread.
    process = os.fork()
    if not process:
        os.close(read_end)
        _write_plan(directory, argv, write_end)
    os.close(write_end)
    try:
        with os.fdopen(read_end, "rb") as pipe:
            pickled = pipe.read()
    except BaseException:
        os.kill(process, signal.SIGKILL)
        raise
    finally:
        _, status = os.waitpid(process, 0)
    code = os.waitstatus_to_exitcode(status)
    # A fork of this process has made the data, so unpickling is safe.
    return code, pickle.loads(pickled) if pickled and not code else None  # noqa: S301


def _write_plan(directory: str, argv: Sequence[str], write_end: int) -> NoReturn:
    """Plan in the forked process. No exception may reach the code of the parent process."""
    code = 1
    try:
        import pickle  # noqa: PLC0415 - only here

        from nereid_mesh.serve.planning import plan_mesh  # noqa: PLC0415 - only here

        try:
            plan = plan_mesh(directory, argv)
            with os.fdopen(write_end, "wb") as pipe:
                pickle.dump(plan, pipe)
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1
        sys.stdout.flush()
    except BrokenPipeError:
        # Nobody reads on, as with `nereid serve --help | head`.
        code = CLOSED_PIPE
    except Exception:
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(code)


def _raise_descriptor_limit() -> float:
    """Raise the limit on descriptors, since each client needs one; return it."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return float("inf") if allowed == resource.RLIM_INFINITY else allowed


def _exit_early(_number: int, _frame: FrameType | None) -> NoReturn:
    """Exit with an exception, so that `finally` removes directory and planning process."""
    sys.exit(0)
