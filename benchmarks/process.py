"""Server processes: starts a command, measures CPU of its process tree, ends the tree.

Linux only: reads /proc. This module must not know about protocols, models or load.
"""

import contextlib
import os
import re
import signal
import socket
import subprocess
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType, TracebackType
from typing import Self

from benchmarks.failure import BenchError

_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
_STOP_TIMEOUT_S = 20.0
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True)
class Command:
    """A command; ``environment``: variables to add to ours. ``directory``: working directory."""

    argv: Sequence[str]
    log: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    directory: Path | None = None


@dataclass(frozen=True)
class Stat:
    """Useful fields of a line of /proc/<pid>/stat."""

    pid: int
    parent: int
    session: int
    started: int
    cpu_s: float
    # Of children that have ended.
    ended_cpu_s: float


def parse_stat(text: str) -> Stat:
    """Parse a line of /proc/<pid>/stat."""
    # The command's name stands in parentheses and may itself hold spaces and parentheses.
    head, _, tail = text.rpartition(")")
    fields = tail.split()
    return Stat(
        pid=int(head.split(" ", 1)[0]),
        parent=int(fields[1]),
        session=int(fields[3]),
        started=int(fields[19]),
        cpu_s=(int(fields[11]) + int(fields[12])) * _TICK_S,
        ended_cpu_s=(int(fields[13]) + int(fields[14])) * _TICK_S,
    )


def process_name(argv: Sequence[str]) -> str:
    """Return the module of ``python -m``, the script of ``python x``, or the program."""
    if not argv or not argv[0]:
        return "?"
    program = Path(argv[0].split()[0]).name
    if not program.startswith("python"):
        return program
    if "-m" in argv[:-1]:
        return argv[argv.index("-m") + 1]
    if "-c" in argv[:-1]:
        # The process is a child that multiprocessing started.
        found = re.match(r"from (multiprocessing\.\w+)", argv[argv.index("-c") + 1])
        return found.group(1) if found else program
    script = next((part for part in argv[1:] if part and not part.startswith("-")), program)
    return Path(script).name


def _all_stats() -> dict[int, Stat]:
    stats = {}
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            try:
                stat = parse_stat(Path(entry.path, "stat").read_text())
            except (FileNotFoundError, ProcessLookupError):
                continue  # The process has just ended.
            stats[stat.pid] = stat
    return stats


def _tree(root: int) -> list[Stat]:
    """Return the root, its descendants, and the other processes of its session."""
    stats = _all_stats()
    members = {pid for pid, stat in stats.items() if pid == root or stat.session == root}
    grown = True
    while grown:
        more = {pid for pid, stat in stats.items() if stat.parent in members} - members
        members |= more
        grown = bool(more)
    return [stats[pid] for pid in sorted(members)]


def _name_of(pid: int) -> str:
    try:
        argv = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except (FileNotFoundError, ProcessLookupError):
        return "?"
    return process_name(argv)


def interrupt_on_signals() -> None:
    """Make the first termination signal raise KeyboardInterrupt, which stops the servers."""
    # SIGINT is among them: a shell starts background jobs with SIGINT ignored.
    for signum in _SIGNALS:
        signal.signal(signum, _interrupt)


def ignore_signals() -> None:
    """Ignore signals while servers are being stopped, so that no server is left running."""
    for signum in _SIGNALS:
        signal.signal(signum, signal.SIG_IGN)


def _interrupt(signum: int, _frame: FrameType | None) -> None:
    ignore_signals()
    raise KeyboardInterrupt(signal.Signals(signum).name)


def free_ports(count: int) -> list[int]:
    """Return different ports that were free a moment ago."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    try:
        return [int(listener.getsockname()[1]) for listener in sockets]
    finally:
        for listener in sockets:
            listener.close()


class ServerProcess:
    """A server and its child processes. At the end of the context, all of them are ended."""

    def __init__(self, command: Command) -> None:
        self._command = command
        command.log.parent.mkdir(parents=True, exist_ok=True)
        with command.log.open("wb") as log:
            # The server has a session of its own: Ctrl-C reaches the benchmark alone, which then
            # stops it.
            self._root = subprocess.Popen(
                list(command.argv),
                cwd=command.directory,
                env={**os.environ, **command.environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        """Process id of the server itself."""
        return self._root.pid

    @property
    def alive(self) -> bool:
        """True while the server itself runs."""
        return self._root.poll() is None

    def wait(self, timeout: float) -> int:
        """Return the exit code of the server itself; raise TimeoutExpired."""
        return self._root.wait(timeout)

    def require_alive(self) -> None:
        """Raise BenchError if the server has ended."""
        code = self._root.poll()
        if code is not None:
            raise BenchError(
                f"{self._command.argv[0]} ended with exit code {code}; the end of its log:\n"
                + self.log_tail()
            )

    def log_tail(self, lines: int = 15) -> str:
        """Return the last lines of the log."""
        text = self._command.log.read_text(errors="replace")
        return "\n".join(text.splitlines()[-lines:])

    def cpu_s(self) -> Counter[str]:
        """Return CPU seconds used so far by process name; processes of one name are added up."""
        used: Counter[str] = Counter()
        for stat in _tree(self._root.pid):
            used[_name_of(stat.pid)] += stat.cpu_s  # type: ignore[assignment]  # Counter is typed for integers
        return used

    def total_cpu_s(self) -> float:
        """Return CPU seconds used so far by all processes, also by those that have ended."""
        return sum(stat.cpu_s + stat.ended_cpu_s for stat in _tree(self._root.pid))

    def processes(self) -> dict[int, str]:
        """Map the process id of each process of the server to its name."""
        return {stat.pid: _name_of(stat.pid) for stat in _tree(self._root.pid)}

    def pause(self) -> None:
        """Suspend all processes of the server."""
        self._signal_all(signal.SIGSTOP)

    def resume(self) -> None:
        """Resume all processes of the server."""
        self._signal_all(signal.SIGCONT)

    def _signal_all(self, signum: signal.Signals) -> None:
        for stat in _tree(self._root.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(stat.pid, signum)

    def stop(self) -> None:
        """End all processes of the server."""
        self.resume()
        members = _tree(self._root.pid)
        if self._root.poll() is None:
            self._root.send_signal(signal.SIGTERM)
            try:
                self._root.wait(_STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                print(f"{self._command.argv[0]} did not stop in {_STOP_TIMEOUT_S:.0f} s: killed")
        _kill_remaining(members, time.monotonic() + 2)
        self._root.wait()


def _kill_remaining(members: Sequence[Stat], kill_at: float) -> None:
    """Wait until ``kill_at`` for the members to end by themselves, then kill the rest."""
    while True:
        now = _all_stats()
        # With the same pid and start time it is never another process with a reused id.
        left = [m for m in members if m.pid in now and now[m.pid].started == m.started]
        left = [m for m in left if not _is_zombie(m.pid)]
        if not left:
            return
        if time.monotonic() >= kill_at:
            for member in left:
                try:
                    os.kill(member.pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
        time.sleep(0.02)


def _is_zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True
