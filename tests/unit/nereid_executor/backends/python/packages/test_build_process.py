"""Processes of a build."""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path

import pytest

from nereid_executor.backends.python.packages.build_process import (
    BuildCancelledError,
    BuildTimeoutError,
    ProcessRules,
    run_build_process,
)
from tests.support.mesh.mesh import has_ended, until

pytestmark = pytest.mark.slow


def run(
    tmp_path: Path, code: str, seconds: float = 60, cancelled: threading.Event | None = None
) -> tuple[int, list[str]]:
    lines: list[str] = []
    with (tmp_path / "lock").open("w") as lock:
        rules = ProcessRules(
            {"ONLY": "this"},
            tmp_path,
            lock.fileno(),
            time.monotonic() + seconds,
            cancelled or threading.Event(),
        )
        code_of_exit = run_build_process([sys.executable, "-c", code], rules, lines.append)
    return code_of_exit, lines


def test_output_and_exit_code(tmp_path: Path) -> None:
    code = "import os, sys; print(os.environ['ONLY'], len(os.environ) < 4, os.getcwd(), flush=True)"
    code += "; sys.stderr.write('end'); sys.exit(3)"
    assert run(tmp_path, code) == (3, [f"this True {tmp_path}", "end"])
    assert run(tmp_path, "import os; os.kill(os.getpid(), 9)") == (1, [])


def test_what_a_build_has_started_ends_with_it(tmp_path: Path) -> None:
    child = "import os, signal; print(os.getpid(), flush=True); signal.pause()"
    code = "import subprocess, sys; child = subprocess.Popen("
    code += f"[sys.executable, '-c', {child!r}], stdout=subprocess.PIPE, text=True)"
    code += "; print(child.stdout.readline())"
    _, lines = run(tmp_path, code)
    until(lambda: has_ended(int(lines[0])), "its child to end")


def test_limits(tmp_path: Path) -> None:
    endless = "import signal; signal.pause()"
    with pytest.raises(BuildTimeoutError):
        run(tmp_path, endless, seconds=0.3)
    cancelled = threading.Event()
    cancelled.set()
    with pytest.raises(BuildCancelledError):
        run(tmp_path, endless, cancelled=cancelled)


def test_a_program_that_is_not_there(tmp_path: Path) -> None:
    with (tmp_path / "lock").open("w") as lock:
        until = time.monotonic() + 60
        rules = ProcessRules(dict(os.environ), tmp_path, lock.fileno(), until, threading.Event())
        lines: list[str] = []
        assert run_build_process(["/nowhere/uv"], rules, lines.append) != 0
    assert "/nowhere/uv" in lines[-1]
