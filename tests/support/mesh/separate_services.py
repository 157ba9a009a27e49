"""Services started one by one, and their child processes."""

import contextlib
import http.client
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks.source_tree import service_module, source_path
from tests.support.mesh.mesh import ask
from tests.support.mesh.poison import poisoned


@contextlib.contextmanager
def service(
    name: str, log: Path, *flags: str, tree: Path | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """tree: of the source of another release; None: this one's."""
    environ = (
        poisoned(os.environ) if tree is None else os.environ | {"PYTHONPATH": source_path(tree)}
    )
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", service_module(name, tree), *flags],
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environ,
            cwd=tree,
        )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            assert process.wait(40) == 0, log.read_text()
        finally:
            process.kill()
            process.wait()


def ready(port: int, model: str) -> bool:
    with contextlib.suppress(OSError, http.client.HTTPException):
        return ask(f"127.0.0.1:{port}", f"/v2/models/{model}/ready")[0] == 200
    return False


def workers(executor: int) -> list[int]:
    """The process ids of its workers, including zombies."""
    pids: list[int] = []
    for each in Path(f"/proc/{executor}/task").glob("*/children"):
        # A thread may have ended.
        with contextlib.suppress(OSError):
            pids += map(int, each.read_text().split())
    return sorted(pid for pid in pids if not _is_guard(pid))


def _is_guard(pid: int) -> bool:
    """Return whether it is the process that ends what confined workers have started."""
    try:
        return b"os.killpg(" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
