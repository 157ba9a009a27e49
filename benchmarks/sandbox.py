"""Entry point ``python -m benchmarks.sandbox``: models in their sandbox beside free ones.

Two meshes, one with ``--sandbox-models``, serve the smallest Python model and take turns. They are
started several times, since two starts of one program differ by more than a sandbox costs. The
interval is over the starts. ONNX models that ask for processes of their own are loaded as well: the
file of one is described first, the other's configuration is complete.
"""

import argparse
import json
import math
import statistics
import sys
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy import stats

from benchmarks import load, process, wire
from benchmarks.failure import BenchError
from benchmarks.models import mlp
from benchmarks.models.workload import Workload, write_script
from benchmarks.peers import nereid

_FORMS = {"free": (), "confined": ("--sandbox-models",)}
_INFER, _CLOCK = "identity", "load_clock"
_COMPLETE, _DESCRIBED = "complete", "described"
_ONE_INSTANCE = "instance_group [ { kind: KIND_CPU count: 1 } ]"
_CPU = f'{_ONE_INSTANCE} backend: "python"'
_IDENTITY_CONFIG = f"""{_CPU} max_batch_size: 64
input {{ name: "INPUT" data_type: TYPE_FP32 dims: [ 1 ] }}
output {{ name: "OUTPUT" data_type: TYPE_FP32 dims: [ 1 ] }}
"""
_CLOCK_CONFIG = f"""{_CPU}
output {{ name: "SECONDS" data_type: TYPE_FP64 dims: [ 2 ] }}
"""
_NATIVE_PARAMETER = 'parameters { key: "sandbox_process" value { string_value: "true" } }'
_NATIVE_CONFIGS = {
    _COMPLETE: mlp.config("onnxruntime").replace(mlp.NAME, _COMPLETE) + _NATIVE_PARAMETER,
    _DESCRIBED: f"{_ONE_INSTANCE} {_NATIVE_PARAMETER}",
}
_NATIVE_LOADS = 5
_CONFIDENCE = 0.95


@dataclass
class _Start:
    """Figures of the pairs of one start: logarithms of ratios, and loads by form (s)."""

    rates: list[float]
    cpu: list[float]
    loads: dict[str, list[tuple[float, ...]]]


class _Mesh:
    def __init__(self, form: str, work: Path, tree: Path | None, stack: ExitStack) -> None:
        work = work / form
        write_script(work / "models", _INFER, "identity.py", _IDENTITY_CONFIG)
        write_script(work / "models", _CLOCK, "load_clock.py", _CLOCK_CONFIG)
        for name, config in _NATIVE_CONFIGS.items():
            mlp.write_file(work / "models" / name / "1" / "model.onnx")
            (work / "models" / name / "config.pbtxt").write_text(config)
        http_port, grpc_port, metrics_port = process.free_ports(3)
        flags = ("--model-control-mode=explicit", f"--load-model={_INFER}", *_FORMS[form])
        ports = (http_port, grpc_port, metrics_port)
        command = nereid.command(work / "models", work / "log", ports, flags, tree)
        self._server = stack.enter_context(process.ServerProcess(command))
        self._http = f"http://127.0.0.1:{http_port}/v2"
        address = wire.Address(http_port, grpc_port)
        wire.wait_ready(address, self._server.require_alive, _INFER)
        x = np.ones((1, 1), np.float32)
        workload = Workload(
            name=_INFER, served=_INFER, inputs={"INPUT": x}, expected={"OUTPUT": x},
            write=lambda *_: None, graph=None, batched=_INFER, max_batch_size=64,
        )  # fmt: skip
        wire.verify_grpc(address, workload)
        self._client = load.GrpcClient(address, work, wire.grpc_message(workload))

    def run(self, concurrency: int, requests: int) -> tuple[float, float]:
        """Return requests per second, and CPU seconds of executor and worker for a request."""
        before = self._cpu_s()
        rate = self._client.run(concurrency, requests).infer_per_s
        return rate, (self._cpu_s() - before) / requests

    def _cpu_s(self) -> float:
        used = self._server.cpu_s()
        return sum(used[name] for name in ("nereid_executor", "direct"))

    def load_s(self) -> tuple[float, ...]:
        """Load the clock and the native models, and unload them.

        Return the age and the CPU time of the clock's worker, the time of the complete native
        model's load, and the CPU time of all processes for each native model.
        """
        self._post(f"repository/models/{_CLOCK}/load")
        outputs = self._post(f"models/{_CLOCK}/infer", {"inputs": []})["outputs"]
        self._post(f"repository/models/{_CLOCK}/unload")
        age_s, cpu_s = outputs[0]["data"]
        begin = time.perf_counter()
        self._post(f"repository/models/{_COMPLETE}/load")
        native_s = time.perf_counter() - begin
        self._post(f"repository/models/{_COMPLETE}/unload")
        return age_s, cpu_s, native_s, *map(self._native_cpu_s, _NATIVE_CONFIGS)

    def _native_cpu_s(self, model: str) -> float:
        # The clock of ended processes ticks every 10 ms.
        before = self._server.total_cpu_s()
        for _ in range(_NATIVE_LOADS):
            self._post(f"repository/models/{model}/load")
            self._post(f"repository/models/{model}/unload")
        return (self._server.total_cpu_s() - before) / _NATIVE_LOADS

    def _post(self, path: str, body: object = None) -> dict[str, list[dict[str, list[float]]]]:
        data = json.dumps(body or {}).encode()
        with urllib.request.urlopen(f"{self._http}/{path}", data, timeout=60) as response:
            text = response.read()
        return dict(json.loads(text)) if text else {}


def _measure(arguments: argparse.Namespace, work: Path) -> _Start:
    start = _Start([], [], {form: [] for form in _FORMS})
    with ExitStack() as stack:
        meshes = {form: _Mesh(form, work, arguments.tree, stack) for form in _FORMS}
        order = list(_FORMS)
        for pair in range(-1, arguments.pairs):
            figures = {
                form: meshes[form].run(arguments.concurrency, arguments.requests) for form in order
            }
            order.reverse()
            # The first pair warms up.
            if pair >= 0:
                ratios = np.log(np.divide(figures["confined"], figures["free"]))
                start.rates.append(ratios[0])
                start.cpu.append(ratios[1])
        for number in range(-1, arguments.loads):
            for form in order:
                loads = meshes[form].load_s()
                # The first native load may import the backend.
                if number >= 0:
                    start.loads[form].append(loads)
            order.reverse()
    return start


def _interval(figures: Sequence[float]) -> tuple[float, float]:
    """Return the mean and half the width of its interval of confidence."""
    mean = statistics.fmean(figures)
    if len(figures) < 2:
        return mean, math.inf
    error = statistics.stdev(figures) / math.sqrt(len(figures))
    return mean, error * float(stats.t.ppf((1 + _CONFIDENCE) / 2, len(figures) - 1))


def _print_ratio(what: str, logarithms: Sequence[float]) -> None:
    mean, half = _interval(logarithms)
    low, high = math.exp(mean - half), math.exp(min(mean + half, 10))
    print(f"{what:34} {math.exp(mean):7.4f}   [{low:.4f}, {high:.4f}]")


def _print_loads(what: str, starts: Sequence[_Start], index: int) -> None:
    def median_ms(start: _Start, form: str) -> float:
        return 1000 * statistics.median(took[index] for took in start.loads[form])

    extra = [median_ms(start, "confined") - median_ms(start, "free") for start in starts]
    mean, half = _interval(extra)
    free = statistics.fmean(median_ms(start, "free") for start in starts)
    print(f"{what:34} {mean:+7.1f} ms [{mean - half:+.1f}, {mean + half:+.1f}] to {free:.1f}")


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, and print the ratios of confined to free with their intervals."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sandbox", description=__doc__)
    parser.add_argument("--starts", type=int, default=8, help="of both meshes")
    parser.add_argument("--pairs", type=int, default=10, help="of each start")
    parser.add_argument("--requests", type=int, default=20_000, help="of each run")
    parser.add_argument("--loads", type=int, default=10, help="of each start and mesh")
    parser.add_argument("--concurrency", type=int, default=1, help="requests in flight")
    parser.add_argument("--tree", type=Path, help="a copy of the project to run instead")
    arguments = parser.parse_args(argv)
    starts = []
    try:
        load.require_clients(["grpc"])
        for _ in range(arguments.starts):
            with tempfile.TemporaryDirectory() as work:
                starts.append(_measure(arguments, Path(work)))
    except BenchError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"confined / free, {_CONFIDENCE:.0%} interval over {len(starts)} starts")
    _print_ratio("requests per second", [statistics.fmean(each.rates) for each in starts])
    _print_ratio("CPU of a request (executor, worker)", [statistics.fmean(e.cpu) for e in starts])
    _print_loads("load, by the worker's clock", starts, 0)
    _print_loads("CPU of a load, in the worker", starts, 1)
    _print_loads("load of a native model", starts, 2)
    _print_loads("CPU of it", starts, 3)
    _print_loads("CPU of one that is described", starts, 4)
    return 0


if __name__ == "__main__":
    sys.exit(main())
