"""Runs one of the tools, and measures its CPU time. Linux only: reads /proc."""

import contextlib
import csv
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.failure import BenchError
from benchmarks.load_tools.settings import Setting, Target, flags
from benchmarks.process import Command, ServerProcess
from benchmarks.source_tree import source_path

PERF_ANALYZER = "perf_analyzer"
NEREID = "nereid perf"
# Exit codes of `nereid perf` after a measurement: the client was the bottleneck, windows were not
# stable.
_MEASURED = (0, 4, 5)
_LOOK_S = 0.1
_TIMEOUT_S = 120.0
# Shares of all requests between which CPU is counted: neither the tool's start nor its end.
_FIRST, _LAST = 0.3, 0.95


@dataclass(frozen=True)
class Sample:
    """Figures of a tool. cpu_us: CPU time of all its processes and threads, per request."""

    rate: float
    p50_us: float
    p99_us: float
    cpu_us: float


@dataclass(frozen=True)
class Tools:
    """Tools to run.

    perf_analyzer: path of the binary. tree: source tree whose `nereid` is run. work: folder for
    logs.
    """

    perf_analyzer: Path
    tree: Path
    work: Path
    window_s: float

    def run(
        self, tool: str, setting: Setting, target: Target, count: Callable[[], int | None]
    ) -> Sample:
        """Run a tool.

        count: returns how many requests the server has served, or `None` if the server does not
        say.
        """
        given = flags(setting, target, self.window_s)
        found = self.work / f"{target.name}-{setting.name}-{tool.replace(' ', '-')}.csv"
        found.unlink(missing_ok=True)
        log, report = found.with_suffix(".log"), ["-f", str(found)]
        if tool == PERF_ANALYZER:
            asynchronous = [] if setting.has_sequences else ["--async"]
            argv = [str(self.perf_analyzer), *given, *asynchronous, *report]
            command = Command(argv, log)
        else:
            # The shape option of perf_analyzer has no datatypes.
            shape = ["--shape", target.shape] if target.shape else []
            argv = ["perf", *given, *shape, *report, "--live=off"]
            command = nereid_command(self.tree, argv, log)
        return _measured(command, found, count, self.window_s)


def nereid_command(tree: Path, arguments: list[str], log: Path) -> Command:
    """Return the command of `nereid` in a tree of the project."""
    program = Path(sys.executable).with_name("nereid")
    return Command([str(program), *arguments], log, {"PYTHONPATH": source_path(tree)}, tree)


def _measured(
    command: Command, report: Path, count: Callable[[], int | None], window_s: float
) -> Sample:
    cpu = _CpuTime()
    looks: list[tuple[float, float, int | None]] = []
    give_up = time.monotonic() + _TIMEOUT_S
    with ServerProcess(command) as process:
        while process.alive:
            looks.append((time.monotonic(), cpu.seconds(process), count()))
            if looks[-1][0] > give_up:
                raise BenchError(f"it does not end: {process.log_tail()}")
            time.sleep(_LOOK_S)
        code = process.wait(1)
        if code not in _MEASURED or not report.exists():
            raise BenchError(f"exit code {code}: {process.log_tail(4)}")
    with report.open(newline="") as file:
        row = next(csv.DictReader(file))
    rate = float(row["Inferences/Second"])
    return Sample(
        rate=rate,
        p50_us=float(row["p50 latency"]),
        p99_us=float(row["p99 latency"]),
        cpu_us=cpu_per_request_us(looks, rate, window_s),
    )


def cpu_per_request_us(
    looks: Sequence[tuple[float, float, int | None]], rate: float, window_s: float
) -> float:
    """Return the CPU time per request.

    looks: observations, each with a time, and the CPU seconds used and requests served until then.
    If the server does not say how many requests it has served, the number is computed from the
    tool's rate in the last windows.
    """
    counts = [count for _, _, count in looks if count is not None]
    if len(counts) < len(looks):
        ended = looks[-1][0]
        steady = [look for look in looks if 0.5 <= (ended - look[0]) / window_s <= 2.5]
        return (steady[-1][1] - steady[0][1]) / (rate * (steady[-1][0] - steady[0][0])) * 1e6
    served = counts[-1] - counts[0]
    first, last = (counts[0] + share * served for share in (_FIRST, _LAST))
    steady = [look for look, count in zip(looks, counts, strict=True) if first <= count <= last]
    (_, before_s, before), (_, after_s, after) = steady[0], steady[-1]
    return (after_s - before_s) / max((after or 0) - (before or 0), 1) * 1e6


class _CpuTime:
    """CPU time by the scheduler's own count, as a tick is longer than what a window may take.

    A thread that has ended has its last count.
    """

    def __init__(self) -> None:
        self._ns: dict[Path, int] = {}

    def seconds(self, process: ServerProcess) -> float:
        """Return CPU seconds of all the process's threads until now."""
        for pid in process.processes():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                for thread in Path(f"/proc/{pid}/task").iterdir():
                    self._ns[thread] = int((thread / "schedstat").read_text().split()[0])
        return sum(self._ns.values()) / 1e9
