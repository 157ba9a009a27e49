"""What a worker has started ends with the executor, however that ends."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

ENDLESS = [sys.executable, "-c", "import threading; threading.Event().wait()"]
# Watches the groups that its arguments name, forgets the last, and is killed; with "guard", the
# first guard is killed before.
EXECUTOR = """
import os, signal, sys
from nereid_executor.backends.python.supervisor.worker_groups import WorkerGroups
first, *others, last = map(int, sys.argv[2:])
groups = WorkerGroups()
groups.watch_group(first)
if sys.argv[1] == "guard":
    guard = int(open(f"/proc/self/task/{os.getpid()}/children").read())
    os.kill(guard, signal.SIGKILL)
    os.waitid(os.P_PID, guard, os.WEXITED | os.WNOWAIT)
for group in (*others, last):
    groups.watch_group(group)
groups.forget_group(last)
groups.forget_group(last)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("killed", ["executor", "guard"])
def test_groups_end_with_an_executor_that_is_killed(killed: str) -> None:
    processes = [subprocess.Popen(ENDLESS, start_new_session=True) for _ in range(3)]
    try:
        groups = [str(process.pid) for process in processes]
        command = [sys.executable, "-c", EXECUTOR, killed, *groups]
        assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
        for process in processes[:2]:
            assert process.wait(20) == -signal.SIGKILL
        assert processes[2].poll() is None
    finally:
        for process in processes:
            process.kill()
            process.wait()
