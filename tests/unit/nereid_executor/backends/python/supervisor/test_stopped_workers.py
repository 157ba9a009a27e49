"""Workers that are stopped for too long are killed, and no others."""

from __future__ import annotations

import signal
import subprocess
import sys

from nereid_executor.backends.python.supervisor.stopped_workers import StoppedWorkers


def test_only_a_worker_that_is_stopped_for_long_is_killed() -> None:
    stopped: set[int] = set()
    watch = StoppedWorkers(stopped.__contains__)
    endless = [sys.executable, "-c", "import threading; threading.Event().wait()"]
    processes = [subprocess.Popen(endless, start_new_session=True) for _ in range(2)]
    first, second = (process.pid for process in processes)
    try:
        for pid in (first, second):
            watch.watch_worker(pid, "m")
        assert watch.kill_stopped(0, 5) == []
        stopped.add(first)
        assert watch.kill_stopped(100, 5) == []
        assert watch.kill_stopped(104, 5) == []
        # It went on for a moment: the time begins anew.
        stopped.clear()
        assert watch.kill_stopped(104.5, 5) == []
        stopped.add(first)
        assert watch.kill_stopped(105, 5) == []
        assert watch.kill_stopped(110, 5) == [first]
        assert processes[0].wait(10) == -signal.SIGKILL
        watch.forget_worker(first)
        assert watch.kill_stopped(120, 5) == []
        assert processes[1].poll() is None
    finally:
        for process in processes:
            process.kill()
            process.wait()
