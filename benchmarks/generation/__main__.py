"""Entry point, ``python -m benchmarks.generation``: streamed chats beside gRPC streams.

A model of Nereid writes its clock as tokens. How long a token takes from the model to the client is
measured with streams of both kinds at the same time, so that a busy machine delays both; the CPU
time of all processes of the server in turns.
"""

import argparse
import json
import shlex
import shutil
import statistics
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import grpc
import numpy as np
from tritonclient.grpc import service_pb2

from benchmarks import wire
from benchmarks.failure import BenchError
from benchmarks.generation.load import Run, chat_body, connect_events, connect_grpc, run
from benchmarks.peers import nereid
from benchmarks.process import ServerProcess, free_ports, ignore_signals, interrupt_on_signals

_NAME = "paced"
_MODEL = Path(__file__).parent / "scripts" / "paced_model.py"
_CONFIG = """
backend: "python"
model_transaction_policy { decoupled: true }
input { name: "TEXT" data_type: TYPE_STRING dims: [ 1 ] }
output { name: "SAID" data_type: TYPE_STRING dims: [ 1 ] }
"""
_HEADS = (
    *("streams", "gRPC p50 us", "events p50 us", "difference us", "gRPC p99 us"),
    *("events p99 us", "gRPC CPU us/token", "events CPU us/token"),
)
_ROUND_TRIP_S = 30


def _write_model(folder: Path) -> None:
    (folder / "1").mkdir(parents=True)
    shutil.copy(_MODEL, folder / "1" / "model.py")
    (folder / "config.pbtxt").write_text(_CONFIG)
    (folder / "text.json").write_text(json.dumps({"task": "generate"}))
    template = "{% for message in messages %}{{ message.content }}{% endfor %}"
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))


def _grpc_message() -> bytes:
    request = service_pb2.ModelInferRequest(model_name=_NAME)
    text = b"hello"
    request.inputs.add(name="TEXT", datatype="BYTES", shape=[1])
    request.raw_input_contents.append(len(text).to_bytes(4, "little") + text)
    return bytes(request.SerializeToString())


def _stream_bytes(port: int, message: bytes) -> int:
    """Return the size of a stream's messages with their prefixes, which is the same for all."""
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        call: grpc.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream(wire.STREAM_PATH)
        responses = list(call(iter([message]), timeout=_ROUND_TRIP_S))
    error = service_pb2.ModelStreamInferResponse.FromString(responses[0]).error_message
    if error:
        raise BenchError(error)
    return sum(len(response) + 5 for response in responses)


def _measure(arguments: argparse.Namespace, work: Path) -> None:
    _write_model(work / "repository" / _NAME)
    ports = free_ports(3)
    flags = ("--openai-api", *arguments.nereid_flags)
    started = nereid.command(
        work / "repository", work / "log", (ports[0], ports[1], ports[2]), flags
    )
    message, body = _grpc_message(), chat_body(_NAME)
    with ExitStack() as stack:
        stack.callback(ignore_signals)
        server = stack.enter_context(ServerProcess(started))
        wire.wait_ready(wire.Address(ports[0], ports[1]), server.require_alive, _NAME)
        stream_bytes = _stream_bytes(ports[1], message)
        print(f"| {' | '.join(_HEADS)} |\n|{' ---: |' * len(_HEADS)}")
        for count in arguments.streams:
            through_grpc = partial(connect_grpc, ports[1], count, message, stream_bytes)
            events = partial(connect_events, ports[0], count, body)
            rounds = [
                [
                    run(server, kinds, arguments.seconds)
                    for kinds in ((through_grpc, events), (through_grpc,), (events,))
                ]
                for _ in range(arguments.rounds)
            ]
            _print_row(count, rounds)


def _print_row(count: int, rounds: Sequence[Sequence[Run]]) -> None:
    medians, tails = (
        [[float(np.percentile(delays, share)) for delays in both.delays_us] for both, *_ in rounds]
        for share in (50, 99)
    )
    cells = [
        *(statistics.median(pair[kind] for pair in medians) for kind in (0, 1)),
        statistics.median(events - through_grpc for through_grpc, events in medians),
        *(statistics.median(pair[kind] for pair in tails) for kind in (0, 1)),
        *(statistics.median(alone[kind].cpu_us for _, *alone in rounds) for kind in (0, 1)),
    ]
    print(f"| {count} | {' | '.join(f'{cell:.0f}' for cell in cells)} |", flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.generation", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0, help="of each measurement")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 16, 256])
    parser.add_argument("--nereid-flags", type=shlex.split, default=[], help="for nereid serve")
    arguments = parser.parse_args(argv)
    interrupt_on_signals()
    with tempfile.TemporaryDirectory(prefix="nereid-bench-") as directory:
        _measure(arguments, Path(directory))
    return 0


if __name__ == "__main__":
    sys.exit(main())
