"""Entry point ``python -m benchmarks.cold_start``: ``nereid serve`` until the first response.

The start is measured in turns with ``python -c "import numpy, onnxruntime"``, which shows how fast
this machine starts processes at the moment. The client tries an inference as soon as a port is
open. Wall-clock times are meaningful only on a quiet machine. The CPU time of all processes until
the first response can also be compared on a busy machine.
"""

import argparse
import json
import os
import re
import shlex
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from benchmarks.models import mlp
from benchmarks.peers import nereid
from benchmarks.process import ServerProcess, free_ports, interrupt_on_signals, parse_stat

_IMPORTS = "import numpy, onnxruntime"
_LIMIT_S = 60.0
_PAUSE_S = 0.005
# Time stamp and text of a line of the log.
_LOGGED = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}) (.*)")


class _Start(NamedTuple):
    """One start, until the first response."""

    seconds: float
    cpu_s: Counter[str]
    timeline: list[str]


def _imports() -> tuple[float, float]:
    """Return seconds, and CPU seconds, of the import that starts are compared with."""
    began = time.perf_counter()
    process = subprocess.Popen([sys.executable, "-c", _IMPORTS])
    _, status, used = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - began
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"'{_IMPORTS}' failed")
    return seconds, used.ru_utime + used.ru_stime


def _request() -> bytes:
    shape = [1, mlp.WIDTHS[0]]
    tensor = mlp.example().tobytes()
    parameters = {"binary_data_size": len(tensor)}
    described = {"name": mlp.INPUT, "datatype": "FP32", "shape": shape, "parameters": parameters}
    outputs = [{"name": mlp.OUTPUT, "parameters": {"binary_data": True}}]
    header = json.dumps({"inputs": [described], "outputs": outputs}).encode()
    return (
        b"POST /v2/models/%s/infer HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
        b"Inference-Header-Content-Length: %d\r\nContent-Length: %d\r\n\r\n"
        % (mlp.NAME.encode(), len(header), len(header) + len(tensor))
    ) + (header + tensor)


def _has_response(port: int, request: bytes) -> bool:
    """Return whether an inference succeeds now."""
    try:
        with socket.create_connection(("127.0.0.1", port), _LIMIT_S) as connection:
            connection.sendall(request)
            return connection.recv(64).startswith(b"HTTP/1.1 200")
    except ConnectionError:
        return False


def _start(repository: Path, work: Path, flags: Sequence[str]) -> _Start:
    ports = free_ports(3)
    command = nereid.command(repository, work / "nereid.log", (ports[0], ports[1], ports[2]), flags)
    request = _request()
    began, began_at = time.perf_counter(), datetime.now().timestamp()  # noqa: DTZ005 - as logged
    with ServerProcess(command) as server:
        while not _has_response(ports[0], request):
            server.require_alive()
            if time.perf_counter() - began > _LIMIT_S:
                raise TimeoutError(server.log_tail())
            time.sleep(_PAUSE_S)
        seconds = time.perf_counter() - began
        used = server.cpu_s()
        used["planning"] = _ended_children_s(server.pid)  # type: ignore[assignment]  # Counter is typed for integers
        text = command.log.read_text(errors="replace")
    timeline = [
        f"{(datetime.strptime(at, '%Y-%m-%d %H:%M:%S,%f').timestamp() - began_at) * 1e3:6.0f} ms"  # noqa: DTZ007
        f"  {what}"
        for at, what in _LOGGED.findall(text)
    ]
    return _Start(seconds, used, timeline)


def _ended_children_s(pid: int) -> float:
    """Return CPU seconds of a process's children that have ended."""
    text = Path(f"/proc/{pid}/stat").read_text()
    # The function parse_stat reads user and system time, two fields before those of ended children.
    head, _, tail = text.rpartition(")")
    fields = tail.split()
    fields[11:13] = fields[13:15]
    return parse_stat(f"{head}) {' '.join(fields)}").cpu_s


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cold_start", description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--nereid-flags", type=shlex.split, default=[], help="for nereid serve")
    parser.add_argument("--timeline", action="store_true", help="print the fastest start's log")
    arguments = parser.parse_args(argv)
    interrupt_on_signals()
    imports: list[tuple[float, float]] = []
    starts: list[_Start] = []
    with tempfile.TemporaryDirectory(prefix="nereid-bench-") as directory:
        work = Path(directory)
        repository = mlp.write_repository(work / "repository", "onnxruntime")
        # The first start of each compiles modules, or reads them from the disk.
        for number in range(arguments.rounds + 1):
            taken = _imports()
            start = _start(repository, work, arguments.nereid_flags)
            if number:
                imports.append(taken)
                starts.append(start)
    import_s, import_cpu_s = (statistics.median(column) for column in zip(*imports, strict=True))
    print(f"python -c '{_IMPORTS}': {import_s:.2f} s, CPU {import_cpu_s:.2f} s")
    _report(starts, imports, timeline=arguments.timeline)
    return 0


def _report(
    starts: Sequence[_Start], imports: Sequence[tuple[float, float]], *, timeline: bool
) -> None:
    pairs = list(zip(starts, imports, strict=True))
    ratio = statistics.median(start.seconds / import_s for start, (import_s, _) in pairs)
    totals = [sum(start.cpu_s.values()) for start in starts]
    cpu_ratio = statistics.median(
        total / cpu_s for total, (_, cpu_s) in zip(totals, imports, strict=True)
    )
    seconds = sorted(start.seconds for start in starts)
    print(
        f"first response after {statistics.median(seconds):.2f} s"
        f" ({seconds[0]:.2f} to {seconds[-1]:.2f}), {ratio:.1f} x that import;"
        f" CPU {statistics.median(totals):.2f} s, {cpu_ratio:.1f} x"
    )
    for process in sorted({name for start in starts for name in start.cpu_s}):
        used = statistics.median(start.cpu_s[process] for start in starts)
        print(f"    {used:5.2f} s CPU  {process}")
    if timeline:
        print(*min(starts, key=lambda start: start.seconds).timeline, sep="\n")


if __name__ == "__main__":
    sys.exit(main())
