"""Entry point, ``python -m benchmarks.real_models``: MiniLM and ResNet-50 beside the bare loop.

The bare loop runs the same file at its best batch size, in a process of its own; the clients are
sockets that send the same bytes again and again, so that they cost next to nothing beside the
model. Both take turns. Rates say something on a quiet machine only; CPU per inference, of the
executor and of the bare loop, can be compared on a busy one as well.
"""

import argparse
import json
import multiprocessing
import shlex
import socket
import statistics
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import onnxruntime

from benchmarks import resnet50
from benchmarks.models import minilm
from benchmarks.peers import nereid
from benchmarks.process import ServerProcess, free_ports

_TOKENS = 128
_BATCH_SIZES = (1, 2, 4, 8, 16)
_EXECUTOR = "nereid.services.executor"


@dataclass(frozen=True)
class _Subject:
    """A model, and a request to it for one inference."""

    name: str
    repository: Path
    feed: Mapping[str, npt.NDArray[Any]]
    output: str

    @property
    def file(self) -> Path:
        return self.repository / self.name / "1" / "model.onnx"

    def request(self) -> bytes:
        """One HTTP request with binary tensors."""
        types = {"int64": "INT64", "float32": "FP32"}
        inputs = [
            {
                "name": name,
                "datatype": types[array.dtype.name],
                "shape": array.shape,
                "parameters": {"binary_data_size": array.nbytes},
            }
            for name, array in self.feed.items()
        ]
        outputs = [{"name": self.output, "parameters": {"binary_data": True}}]
        header = json.dumps({"inputs": inputs, "outputs": outputs}).encode()
        body = header + b"".join(array.tobytes() for array in self.feed.values())
        return (
            b"POST /v2/models/%s/infer HTTP/1.1\r\nHost: x\r\n"
            b"Inference-Header-Content-Length: %d\r\nContent-Length: %d\r\n\r\n"
            % (self.name.encode(), len(header), len(body))
        ) + body


class _Used(NamedTuple):
    """What a number of inferences took."""

    inferences: int
    seconds: float
    cpu_s: float
    # Executions of the model.
    runs: int

    @property
    def rate(self) -> float:
        return self.inferences / self.seconds

    @property
    def cpu_ms(self) -> float:
        """CPU time of an inference."""
        return self.cpu_s / self.inferences * 1e3

    @property
    def batch(self) -> float:
        return self.inferences / self.runs


# --- the bare loop, in its process

_session: onnxruntime.InferenceSession


def _open_session(path: str, *, spinning: bool) -> None:
    global _session  # noqa: PLW0603 - of the process
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.add_session_config_entry("session.intra_op.allow_spinning", str(int(spinning)))
    _session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def _run_session(
    feed: Mapping[str, npt.NDArray[Any]], output: str, batch_size: int, seconds: float
) -> _Used:
    batch = {name: np.repeat(array, batch_size, 0) for name, array in feed.items()}
    _session.run([output], batch)
    runs, began, cpu_s = 0, time.perf_counter(), time.process_time()
    while time.perf_counter() - began < seconds:
        _session.run([output], batch)
        runs += 1
    taken_s = time.perf_counter() - began
    return _Used(runs * batch_size, taken_s, time.process_time() - cpu_s, runs)


class _BareLoop:
    def __init__(self, subject: _Subject, *, spinning: bool) -> None:
        self._subject = subject
        self._process = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))
        self._process.submit(_open_session, str(subject.file), spinning=spinning).result()

    def run(self, batch_size: int, seconds: float) -> _Used:
        subject = self._subject
        arguments = subject.feed, subject.output, batch_size, seconds
        return self._process.submit(_run_session, *arguments).result()

    def close(self) -> None:
        self._process.shutdown()


# --- the server


class _Served:
    def __init__(self, subject: _Subject, work: Path, flags: Sequence[str]) -> None:
        self._subject = subject
        ports = free_ports(3)
        self._port = ports[0]
        command = nereid.command(
            subject.repository, work / f"{subject.name}.log", (ports[0], ports[1], ports[2]), flags
        )
        self._server = ServerProcess(command)
        self._await_ready()

    def _await_ready(self) -> None:
        url = f"http://127.0.0.1:{self._port}/v2/models/{self._subject.name}/ready"
        deadline = time.monotonic() + 120
        while True:
            try:
                with urllib.request.urlopen(url, timeout=5):
                    return
            except OSError:
                self._server.require_alive()
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)

    def run(self, concurrency: int, seconds: float) -> _Used:
        """Closed loops over as many connections."""
        runs, cpu_s = self._executions(), self._executor_cpu_s()
        loops = [_Client(self._port, self._subject.request()) for _ in range(concurrency)]
        began = time.perf_counter()
        for each in loops:
            each.start()
        time.sleep(seconds)
        for each in loops:
            each.stopping = True
        for each in loops:
            each.join()
        taken_s = time.perf_counter() - began
        if failed := [each.error for each in loops if each.error is not None]:
            raise failed[0]
        inferences = sum(each.responses for each in loops)
        used_s = self._executor_cpu_s() - cpu_s
        return _Used(inferences, taken_s, used_s, self._executions() - runs)

    def close(self) -> None:
        self._server.stop()

    def _executions(self) -> int:
        url = f"http://127.0.0.1:{self._port}/v2/models/{self._subject.name}/stats"
        with urllib.request.urlopen(url, timeout=30) as response:
            return int(json.load(response)["model_stats"][0]["execution_count"])

    def _executor_cpu_s(self) -> float:
        """To the nanosecond, where /proc/<pid>/stat counts ticks of 10 ms."""
        used_ns = 0
        for pid, name in self._server.processes().items():
            if name == _EXECUTOR:
                for path in Path(f"/proc/{pid}/task").glob("*/schedstat"):
                    used_ns += int(path.read_text().split()[0])
        return used_ns / 1e9


class _Client(threading.Thread):
    """One connection, one request at a time."""

    def __init__(self, port: int, request: bytes) -> None:
        super().__init__(daemon=True)
        self._request = request
        self._connection = socket.create_connection(("127.0.0.1", port))
        self._connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.stopping = False
        self.responses = 0
        self.error: Exception | None = None

    def run(self) -> None:
        try:
            with self._connection, self._connection.makefile("rb") as responses:
                while not self.stopping:
                    self._connection.sendall(self._request)
                    _read_response(responses)
                    self.responses += 1
        except Exception as error:
            self.error = error


def _read_response(stream: Any) -> None:
    status, length = stream.readline(), 0
    while (line := stream.readline().lower()) not in (b"\r\n", b""):
        if line.startswith(b"content-length:"):
            length = int(line.partition(b":")[2])
    body = stream.read(length)
    if not status.startswith(b"HTTP/1.1 200") or len(body) < length:
        raise ConnectionError((status + body).decode(errors="replace"))


# --- the benchmark


def _minilm(work: Path, models: Path) -> _Subject:
    repository = minilm.write_repository(work / minilm.NAME, models, cached=False)
    words = np.random.default_rng(3).integers(2000, 30000, (1, _TOKENS))
    feed = {
        "input_ids": words,
        "attention_mask": np.ones_like(words),
        "token_type_ids": np.zeros_like(words),
    }
    return _Subject(minilm.NAME, repository, feed, "sentence_embedding")


def _resnet50(work: Path, models: Path) -> _Subject:
    resnet50.write_file(models / "resnet50-seeded" / "model.onnx")
    repository = resnet50.write_repository(
        work / resnet50.NAME, "onnxruntime", made=models / "resnet50-seeded" / "model.onnx"
    )
    return _Subject(
        resnet50.NAME, repository, {resnet50.INPUT: resnet50.example()}, resnet50.OUTPUT
    )


_MODELS = {minilm.NAME: _minilm, resnet50.NAME: _resnet50}


def _best_batch(bare: _BareLoop, name: str, seconds: float) -> int:
    found = {size: bare.run(size, seconds) for size in _BATCH_SIZES}
    for size, used in found.items():
        print(f"    {name}, batch {size:>2}: {used.rate:8.2f}/s, CPU {used.cpu_ms:7.2f} ms each")
    return max(found, key=lambda size: found[size].rate)


def _measure(subject: _Subject, work: Path, arguments: argparse.Namespace) -> None:
    path = subject.repository / subject.name / "config.pbtxt"
    lines = [line for line in path.read_text().splitlines() if "instance_group" not in line]
    group = f"instance_group [ {{ kind: KIND_CPU count: {arguments.instances} }} ]"
    path.write_text("\n".join([*lines, group, arguments.config, ""]))
    bare = {
        "bare": _BareLoop(subject, spinning=False),
        "bare, spinning": _BareLoop(subject, spinning=True),
    }
    served = _Served(subject, work, arguments.nereid_flags)
    try:
        print(subject.name)
        best = {name: _best_batch(loop, name, arguments.seconds / 2) for name, loop in bare.items()}
        served.run(2, 1.0)
        rates: dict[int, list[float]] = {each: [] for each in arguments.concurrency}
        costs: dict[int, list[float]] = {each: [] for each in arguments.concurrency}
        batches: dict[int, list[float]] = {each: [] for each in arguments.concurrency}
        for _ in range(arguments.rounds):
            bounds = [loop.run(best[name], arguments.seconds) for name, loop in bare.items()]
            for concurrency in arguments.concurrency:
                used = served.run(concurrency, arguments.seconds)
                rates[concurrency].append(used.rate / max(bound.rate for bound in bounds))
                costs[concurrency].append(used.cpu_ms / min(bound.cpu_ms for bound in bounds))
                batches[concurrency].append(used.batch)
        for concurrency in arguments.concurrency:
            print(
                f"    nereid, {concurrency:>2} in flight: rate {_spread(rates[concurrency])} x bare"
                f" at its best batch, executor's CPU {_spread(costs[concurrency])} x,"
                f" batches of {statistics.mean(batches[concurrency]):.1f}",
                flush=True,
            )
    finally:
        served.close()
        for loop in bare.values():
            loop.close()


def _spread(ratios: Sequence[float]) -> str:
    return f"{statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.real_models", description=__doc__)
    parser.add_argument("--only", action="append", choices=tuple(_MODELS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0, help="of each measurement")
    parser.add_argument(
        "--concurrency",
        type=lambda text: [int(each) for each in text.split(",")],
        default=[1, 2, 8, 16],
    )
    parser.add_argument("--instances", type=int, default=1)
    parser.add_argument("--config", default="", help="added to the models' configuration")
    parser.add_argument("--nereid-flags", type=shlex.split, default=[], help="for nereid serve")
    parser.add_argument("--models", type=Path, default=Path("models"), help="kept between runs")
    arguments = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="nereid-bench-") as directory:
        work = Path(directory)
        for name in arguments.only or _MODELS:
            _measure(_MODELS[name](work, arguments.models), work, arguments)
    return 0


if __name__ == "__main__":
    sys.exit(main())
