"""Runs one of the tools, and watches what it takes meanwhile. Linux only: reads /proc."""

import contextlib
import csv
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.failure import BenchError
from benchmarks.load_tools.settings import Setting, Target, flags
from benchmarks.process import Command, ServerProcess

PERF_ANALYZER = "perf_analyzer"
NEREID = "nereid perf"
# Of `nereid perf`: the client was the bottleneck, windows were not stable.
_MEASURED = (0, 4, 5)
_LOOK_S = 0.1
_TIMEOUT_S = 120.0
# Of the three windows, from the end of the run: when all load is steady.
_FROM_END = (2.5, 0.5)


@dataclass(frozen=True)
class Sample:
    """What a tool says, and its CPU for each request: all its processes and threads."""

    rate: float
    p50_us: float
    p99_us: float
    cpu_us: float


@dataclass(frozen=True)
class Tools:
    """perf_analyzer: the binary. tree: whose `nereid` is run. work: for logs."""

    perf_analyzer: Path
    tree: Path
    work: Path
    window_s: float

    def run(
        self, tool: str, setting: Setting, target: Target, count: Callable[[], int | None]
    ) -> Sample:
        """count: how many requests the server has served; None: it does not say."""
        given = flags(setting, target, self.window_s)
        found = self.work / f"{target.name}-{setting.name}-{tool.replace(' ', '-')}.csv"
        found.unlink(missing_ok=True)
        log, report = found.with_suffix(".log"), ["-f", str(found)]
        if tool == PERF_ANALYZER:
            asynchronous = [] if setting.has_sequences else ["--async"]
            argv = [str(self.perf_analyzer), *given, *asynchronous, *report]
            command = Command(argv, log)
        else:
            command = nereid_command(self.tree, ["perf", *given, *report, "--live=off"], log)
        return _measured(command, found, count, self.window_s)


def nereid_command(tree: Path, arguments: list[str], log: Path) -> Command:
    """`nereid` of a tree of the project."""
    program = Path(sys.executable).with_name("nereid")
    return Command([str(program), *arguments], log, {"PYTHONPATH": str(tree)}, tree)


def _measured(
    command: Command, report: Path, count: Callable[[], int | None], window_s: float
) -> Sample:
    looks: list[tuple[float, float, int | None]] = []
    give_up = time.monotonic() + _TIMEOUT_S
    with ServerProcess(command) as process:
        while process.alive:
            looks.append((time.monotonic(), _cpu_s(process), count()))
            if looks[-1][0] > give_up:
                raise BenchError(f"it does not end: {process.log_tail()}")
            time.sleep(_LOOK_S)
        code = process.wait(1)
        if code not in _MEASURED or not report.exists():
            raise BenchError(f"exit code {code}: {process.log_tail(4)}")
    with report.open(newline="") as file:
        row = next(csv.DictReader(file))
    rate = float(row["Inferences/Second"])
    ended = looks[-1][0]
    early, late = (ended - each * window_s for each in _FROM_END)
    steady = [look for look in looks if early <= look[0] <= late]
    (began, cpu_before, count_before), (until, cpu_after, count_after) = steady[0], steady[-1]
    if count_before is None or count_after is None:
        requests = rate * (until - began)
    else:
        requests = count_after - count_before
    return Sample(
        rate=rate,
        p50_us=float(row["p50 latency"]),
        p99_us=float(row["p99 latency"]),
        cpu_us=(cpu_after - cpu_before) / max(requests, 1) * 1e6,
    )


def _cpu_s(process: ServerProcess) -> float:
    """By the scheduler's own count, as a tick is longer than what a window may take."""
    total_ns = 0
    for pid in process.processes():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            for thread in Path(f"/proc/{pid}/task").iterdir():
                total_ns += int((thread / "schedstat").read_text().split()[0])
    return total_ns / 1e9
