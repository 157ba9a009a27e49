"""The bare onnxruntime loop: no server, no queue, one thread. No server can be faster.

The loop runs in a process of its own, ``python -m benchmarks.peers.bare GRAPH REQUEST BATCH_SIZE
SECONDS TOLERANCE``, so that the benchmark's memory and threads do not disturb it. REQUEST is an
.npz file with one request's inputs under ``input:NAME`` and its outputs under ``output:NAME``. The
process prints a line of JSON.
"""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime

from benchmarks.failure import BenchError
from benchmarks.models.workload import Workload, is_close


def write(folder: Path, workload: Workload) -> Path:
    """Write the file that loop() reads."""
    folder.mkdir(parents=True, exist_ok=True)
    arrays = {f"input:{name}": array[:1] for name, array in workload.inputs.items()}
    arrays |= {f"output:{name}": array[:1] for name, array in workload.expected.items()}
    path = folder / "request.npz"
    np.savez(path, allow_pickle=False, **arrays)
    return path


def run(workload: Workload, request: Path, batch_size: int, seconds: float) -> dict[str, float]:
    """Return the figures of one loop in a process of its own."""
    arguments = [str(workload.graph), str(request), str(batch_size), str(seconds)]
    ran = subprocess.run(
        [sys.executable, "-m", "benchmarks.peers.bare", *arguments, str(workload.tolerance)],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[2],
    )
    if ran.returncode != 0:
        raise BenchError(f"the bare loop failed: {ran.stderr[-500:]}")
    figures: dict[str, float] = json.loads(ran.stdout)
    return figures


def loop(
    graph: str, request: str, batch_size: int, seconds: float, tolerance: float
) -> dict[str, float]:
    """Run the model for some seconds, check its outputs, and print the figures."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
    with np.load(request) as arrays:
        rows = {name: np.repeat(arrays[name], batch_size, axis=0) for name in arrays.files}
    feed = {n.partition(":")[2]: array for n, array in rows.items() if n.startswith("input:")}
    wanted = {n.partition(":")[2]: array for n, array in rows.items() if n.startswith("output:")}
    names = list(wanted)
    for found, expected in zip(session.run(names, feed), wanted.values(), strict=True):
        if not is_close(found, expected, tolerance):
            raise SystemExit("the bare loop's response is wrong")
    _spin(lambda: session.run(names, feed), seconds / 5)
    cpu_before = time.process_time()
    times_s = _spin(lambda: session.run(names, feed), seconds)
    cpu_s = time.process_time() - cpu_before
    requests = len(times_s) * batch_size
    p50, p99 = np.percentile(times_s, [50, 99]) * 1e6
    return {
        "requests": requests,
        "infer_per_s": requests / sum(times_s),
        "p50_us": float(p50),
        "p99_us": float(p99),
        "cpu_us": cpu_s / requests * 1e6,
    }


def _spin(call: Callable[[], object], seconds: float) -> list[float]:
    times_s, now = [], time.perf_counter()
    end = now + seconds
    while now < end:
        call()
        after = time.perf_counter()
        times_s.append(after - now)
        now = after
    return times_s


if __name__ == "__main__":
    graph, request, batch_size, seconds, tolerance = sys.argv[1:]
    print(json.dumps(loop(graph, request, int(batch_size), float(seconds), float(tolerance))))
