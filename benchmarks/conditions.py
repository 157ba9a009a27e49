"""Entry point ``python -m benchmarks.conditions``: an ensemble with conditions beside calls.

Both classify a row and run one of two models by the result. The ensemble does so by conditions, the
other by a Python model that calls the three models. Both run in the same mesh, in turns.
"""

import argparse
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx.parser

from benchmarks import load, process, wire
from benchmarks.failure import BenchError
from benchmarks.models.workload import Workload, write_script
from benchmarks.peers import nereid

_ENSEMBLE, _CALLS = "branches", "branches_by_calls"
_WIDTH = 64
_TENSORS = f"""\
max_batch_size: 64
input {{ name: "X" data_type: TYPE_FP32 dims: [ {_WIDTH} ] }}
output {{ name: "Y" data_type: TYPE_FP32 dims: [ {_WIDTH} ] }}
"""
_CONFIG = f"""\
platform: "ensemble"
{_TENSORS}
ensemble_scheduling {{
  step {{ model_name: "sign" model_version: -1
    input_map {{ key: "X" value: "X" }} output_map {{ key: "POSITIVE" value: "positive" }} }}
  step {{ model_name: "double" model_version: -1
    input_map {{ key: "X" value: "X" }} output_map {{ key: "Y" value: "Y" }} }}
  step {{ model_name: "triple" model_version: -1
    input_map {{ key: "X" value: "X" }} output_map {{ key: "Y" value: "Y" }} }}
}}
parameters {{ key: "condition.double" value {{ string_value: "positive" }} }}
parameters {{ key: "condition.triple" value {{ string_value: "not positive" }} }}
"""
_STEP = """\
backend: "onnxruntime"
max_batch_size: 64
dynamic_batching { }
instance_group [ { kind: KIND_CPU count: 1 } ]
"""
_GRAPHS = {
    "sign": f"""(float[N, {_WIDTH}] X) => (bool[N, 1] POSITIVE)
        <int64[1] first = {{0}}, float zero = {{0}}>
        {{ value = Gather<axis=1>(X, first) POSITIVE = Greater(value, zero) }}""",
    "double": f"""(float[N, {_WIDTH}] X) => (float[N, {_WIDTH}] Y)
        <float factor = {{2}}> {{ Y = Mul(X, factor) }}""",
    "triple": f"""(float[N, {_WIDTH}] X) => (float[N, {_WIDTH}] Y)
        <float factor = {{3}}> {{ Y = Mul(X, factor) }}""",
}


def _write(repository: Path) -> None:
    for name, graph in _GRAPHS.items():
        (repository / name / "1").mkdir(parents=True)
        model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {name} {graph}')
        onnx.save(model, repository / name / "1" / "model.onnx")
        (repository / name / "config.pbtxt").write_text(_STEP)
    (repository / _ENSEMBLE / "1").mkdir(parents=True)
    (repository / _ENSEMBLE / "config.pbtxt").write_text(_CONFIG)
    config = f'backend: "python" {_TENSORS} dynamic_batching {{ }}'
    config += " instance_group [ { kind: KIND_CPU count: 1 } ]"
    write_script(repository, _CALLS, f"{_CALLS}.py", config)


def _workload(served: str, value: float) -> Workload:
    x = np.full((1, _WIDTH), value, np.float32)
    factor = np.float32(2 if value > 0 else 3)
    return Workload(
        name=served,
        served=served,
        inputs={"X": x},
        expected={"Y": x * factor},
        write=lambda *_: None,
        graph=None,
        batched="sign",
        max_batch_size=64,
    )


def _rates(arguments: argparse.Namespace, work: Path) -> dict[str, list[float]]:
    """Return requests per second by model, a figure for each round."""
    _write(work / "models")
    http_port, grpc_port, metrics_port = process.free_ports(3)
    started = nereid.command(
        work / "models", work / "log", (http_port, grpc_port, metrics_port), (), arguments.tree
    )
    address = wire.Address(http_port, grpc_port)
    rates: dict[str, list[float]] = {_ENSEMBLE: [], _CALLS: []}
    with process.ServerProcess(started) as server:
        for served in rates:
            wire.wait_ready(address, server.require_alive, served)
            for value in (1.0, -1.0):
                wire.verify_grpc(address, _workload(served, value))
        for _ in range(arguments.rounds):
            for served, figures in rates.items():
                message = wire.grpc_message(_workload(served, 1.0))
                client = load.GrpcClient(address, work, message)
                warm = client.warm_up(arguments.concurrency, 1)
                count = max(1, int(warm.infer_per_s * arguments.seconds))
                figures.append(client.run(arguments.concurrency, count).infer_per_s)
    return rates


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, and print the rates and their ratio."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.conditions", description=__doc__)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each round and model")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--concurrency", type=int, default=16)
    parser.add_argument("--tree", type=Path, help="a copy of the project to run instead")
    arguments = parser.parse_args(argv)
    try:
        load.require_clients(["grpc"])
        with tempfile.TemporaryDirectory() as work:
            rates = _rates(arguments, Path(work))
    except BenchError as error:
        print(error, file=sys.stderr)
        return 1
    middle = {served: statistics.median(figures) for served, figures in rates.items()}
    for served, rate in middle.items():
        print(f"{served:18} {rate:8.0f} infer/s")
    print(f"ratio              {middle[_ENSEMBLE] / middle[_CALLS]:8.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
