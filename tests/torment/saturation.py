"""A mesh at saturation, again and again: closed loops of gRPC clients on batching models.

    python -m tests.torment.saturation --runs 100 --clients 64 --clients 256 --disrupt executor
    python -m tests.torment.saturation --runs 20 --seconds 30 --disrupt scheduler --limit 5

Each run is a mesh of its own (`nereid serve`) with two executors, and with two schedulers if these
are disrupted; the models are batched dynamically, up to 8. No request may fail, have a wrong
response or wait for longer than the limit, whatever is disrupted, and no service may log an error
or that a peer broke a protocol: else the exit status is 1.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

import grpc.aio
import numpy as np
from onnx import helper
from tritonclient.grpc import service_pb2

from tests.support.mesh.mesh import Mesh, running
from tests.support.models.onnx_models import value
from tests.torment.log_lines import is_breach, unpermitted

if TYPE_CHECKING:
    from collections.abc import Awaitable

    Infer = grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]
    # Disrupts it once, and returns when it is over.
    Disrupt = Callable[[Mesh, random.Random], Awaitable[None]]

_EXECUTORS: Final = 2
_EXECUTOR: Final = "nereid_executor"
_SCHEDULERS: Final = 2
_SCHEDULER: Final = "nereid_scheduler"
# As the campaign calls them.
_KINDS: Final = {
    "executor": ("kill-executor",),
    "scheduler": ("kill-scheduler", "stop-scheduler"),
    "schedulers": ("kill-scheduler", "stop-scheduler"),
}
_STOPPED_S: Final = (1.0, 8.0)
# So many that each scheduler owns some, nearly always.
_MODELS: Final = tuple(f"simple{number}" for number in range(4))
_MODEL_INFER: Final = "/inference.GRPCInferenceService/ModelInfer"
# A response that takes longer is a request that nobody answers.
_PATIENCE_S: Final = 60.0
_CONFIG: Final = """
platform: "onnxruntime_onnx"
max_batch_size: 8
dynamic_batching { }
input [
  { name: "INPUT0" data_type: TYPE_INT32 dims: [16] },
  { name: "INPUT1" data_type: TYPE_INT32 dims: [16] }
]
output [
  { name: "OUTPUT0" data_type: TYPE_INT32 dims: [16] },
  { name: "OUTPUT1" data_type: TYPE_INT32 dims: [16] }
]
"""


@dataclass
class Run:
    """What one run has seen."""

    clients: int
    disruption: str = "none"
    requests: int = 0
    disruptions: int = 0
    wrong: int = 0
    longest_s: float = 0.0
    # By status and text.
    failed: Counter[str] = field(default_factory=Counter)
    errors: list[str] = field(default_factory=list)
    breaches: list[str] = field(default_factory=list)

    def is_good(self, limit_s: float) -> bool:
        return bool(self.requests) and not (
            self.failed or self.wrong or self.errors or self.breaches or self.longest_s > limit_s
        )

    def note_log(self, lines: Iterable[str]) -> None:
        kinds = _KINDS.get(self.disruption, ())
        for line in unpermitted(lines, kinds):
            (self.breaches if is_breach(line) else self.errors).append(line)

    def add(self, other: Run) -> None:
        self.requests += other.requests
        self.disruptions += other.disruptions
        self.wrong += other.wrong
        self.longest_s = max(self.longest_s, other.longest_s)
        self.failed += other.failed
        self.errors += other.errors
        self.breaches += other.breaches

    def __str__(self) -> str:
        counts = {
            "clients": self.clients,
            f"disruptions ({self.disruption})": self.disruptions,
            "requests": self.requests,
            "failed": self.failed.total(),
            "wrong": self.wrong,
            "ERROR lines": len(self.errors),
            "protocol breaches": len(self.breaches),
        }
        examples = [*itertools.islice(self.failed, 3), *self.errors[:3], *self.breaches[:3]]
        shown = ", ".join(f"{name} {count}" for name, count in counts.items())
        return "\n    ".join([f"{shown}, longest {self.longest_s:.2f} s", *examples])


def write_repository(directory: Path) -> None:
    tensors = {
        name: value(name, "INT32", ["n", 16]) for name in ("INPUT0", "INPUT1", "OUTPUT0", "OUTPUT1")
    }
    made = [
        helper.make_node(operator, ["INPUT0", "INPUT1"], [output])
        for operator, output in (("Add", "OUTPUT0"), ("Sub", "OUTPUT1"))
    ]
    inputs, outputs = [*tensors.values()][:2], [*tensors.values()][2:]
    graph = helper.make_graph(made, "simple", inputs, outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    for name in _MODELS:
        version = directory / name / "1"
        version.mkdir(parents=True)
        (version / "model.onnx").write_bytes(model.SerializeToString())
        (version.parent / "config.pbtxt").write_text(_CONFIG)


def _request(number: int, models: int) -> tuple[bytes, list[bytes]]:
    """A client's request to one of so many models, serialised, and the tensors of its response."""
    one = np.full((1, 16), number, np.int32)
    other = np.arange(16, dtype=np.int32).reshape(1, 16)
    request = service_pb2.ModelInferRequest(model_name=_MODELS[number % models])
    for name in ("INPUT0", "INPUT1"):
        request.inputs.add(name=name, datatype="INT32", shape=[1, 16])
    request.raw_input_contents.extend([one.tobytes(), other.tobytes()])
    return request.SerializeToString(), [(one + other).tobytes(), (one - other).tobytes()]


async def _client(run: Run, infer: Infer, number: int, end_s: float) -> None:
    # A lone scheduler's clients meet in one queue.
    request, expected = _request(number, len(_MODELS) if "scheduler" in run.disruption else 1)
    while (began_s := time.monotonic()) < end_s:
        try:
            response = service_pb2.ModelInferResponse.FromString(
                await infer(request, timeout=_PATIENCE_S)
            )
            run.requests += 1
            run.wrong += list(response.raw_output_contents) != expected
        except grpc.aio.AioRpcError as error:
            run.failed[f"{error.code().name}: {error.details()}"] += 1
        run.longest_s = max(run.longest_s, time.monotonic() - began_s)


async def _kill_executor(mesh: Mesh, chance: random.Random) -> None:
    if executors := mesh.children(_EXECUTOR):
        _signal(signal.SIGKILL, chance.choice(executors))


async def _fail_scheduler(mesh: Mesh, chance: random.Random) -> None:
    """Kill or stop one of them."""
    schedulers = mesh.children(_SCHEDULER)
    # One that was killed is back, so that one lives.
    if len(schedulers) == _SCHEDULERS:
        await _fail([chance.choice(schedulers)], chance)


async def _fail_schedulers(mesh: Mesh, chance: random.Random) -> None:
    """Kill or stop all of them at once."""
    await _fail(mesh.children(_SCHEDULER), chance)


async def _fail(processes: list[int], chance: random.Random) -> None:
    if chance.random() < 0.5:
        _signal(signal.SIGKILL, *processes)
        return
    _signal(signal.SIGSTOP, *processes)
    try:
        await asyncio.sleep(chance.uniform(*_STOPPED_S))
    finally:
        _signal(signal.SIGCONT, *processes)


def _signal(number: signal.Signals, *processes: int) -> None:
    for each in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(each, number)


_DISRUPTIONS: Final[dict[str, Disrupt]] = {
    "executor": _kill_executor,
    "scheduler": _fail_scheduler,
    "schedulers": _fail_schedulers,
}


async def _disrupt(run: Run, mesh: Mesh, chance: random.Random, every_s: float) -> None:
    while True:
        await asyncio.sleep(every_s)
        run.disruptions += 1
        await _DISRUPTIONS[run.disruption](mesh, chance)


async def _load(run: Run, mesh: Mesh, arguments: argparse.Namespace, chance: random.Random) -> None:
    async with contextlib.AsyncExitStack() as stack:
        calls: list[Infer] = []
        # Some connections, as of several clients.
        for _ in range(0, run.clients, 64):
            options = [("grpc.use_local_subchannel_pool", 1)]
            channel = grpc.aio.insecure_channel(mesh.grpc, options=options)
            calls.append((await stack.enter_async_context(channel)).unary_unary(_MODEL_INFER))
        end_s = time.monotonic() + arguments.seconds
        disrupting: asyncio.Task[None] | None = None
        if run.disruption in _DISRUPTIONS:
            disrupting = asyncio.create_task(_disrupt(run, mesh, chance, arguments.every))
        clients = (
            _client(run, calls[each % len(calls)], each, end_s) for each in range(run.clients)
        )
        await asyncio.gather(*clients)
        if disrupting:
            disrupting.cancel()
            await asyncio.gather(disrupting, return_exceptions=True)


def run_once(clients: int, number: int, arguments: argparse.Namespace) -> Run:
    run = Run(clients, arguments.disrupt)
    flags = [*arguments.flag]
    if "scheduler" in run.disruption:
        flags.append(f"--schedulers={_SCHEDULERS}")
    with tempfile.TemporaryDirectory() as directory:
        repository, log = Path(directory, "models"), Path(directory, "log")
        write_repository(repository)
        chance = random.Random(f"run {number} of {arguments.seed}")
        with running(repository, log, *flags, executors=_EXECUTORS) as mesh:
            asyncio.run(_load(run, mesh, arguments, chance))
            if status := mesh.terminate():
                run.errors.append(f"nereid serve ended with status {status} after SIGTERM")
        with log.open(errors="replace") as lines:
            run.note_log(lines)
        if not run.is_good(arguments.limit) and arguments.output:
            arguments.output.mkdir(parents=True, exist_ok=True)
            shutil.copy(log, arguments.output / f"run-{number}-of-{clients}.log")
    return run


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m tests.torment.saturation", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add = parser.add_argument
    add("--runs", type=int, default=1, help="of each number of clients")
    add("--seconds", type=float, default=10.0, help="how long each run's clients send")
    add("--clients", type=int, action="append", help="may be given several times; 64 by default")
    kinds = (
        "an executor is killed; one scheduler of two, or both, are killed or stopped for a while"
    )
    add("--disrupt", choices=("none", *_DISRUPTIONS), default="none", help=kinds)
    add("--every", type=float, default=2.0, help="seconds from one disruption's end to the next")
    add("--limit", type=float, default=_PATIENCE_S, help="how long a request may wait, in seconds")
    add("--seed", type=int, default=1, help="decides the disruptions")
    add("--flag", action="append", default=[], help="of nereid serve; may be given several times")
    add("--output", type=Path, default=Path("build/saturation"), help="for logs of bad runs")
    return parser


def main(argv: list[str]) -> int:
    arguments = _parser().parse_args(argv)
    # A run without a single request is bad as well.
    is_good, totals = True, []
    for clients in arguments.clients or [64]:
        total = Run(clients, arguments.disrupt)
        for number in range(arguments.runs):
            run = run_once(clients, number, arguments)
            print(f"run {number}: {run}", flush=True)
            is_good &= run.is_good(arguments.limit)
            total.add(run)
        totals.append(total)
    for total in totals:
        print(f"{arguments.runs} runs: {total}")
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
