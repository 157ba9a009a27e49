"""Entry point ``python -m benchmarks.large``: one large tensor to the server and back.

The time is compared with a memcpy of the same bytes, and with Triton. The client does as little as
possible (a socket for HTTP, bytes through grpcio for gRPC), so that the server determines the time.
"""

import argparse
import shlex
import shutil
import socket
import statistics
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import onnx
from onnx import TensorProto, helper

from benchmarks.models.workload import SCRIPTS
from benchmarks.peers import nereid, triton
from benchmarks.process import ServerProcess, free_ports
from nereid.pb import kserve_pb2

NAME = "identity"
_CONFIG = """\
name: "identity"
backend: "{backend}"
input [ {{ name: "INPUT" data_type: TYPE_FP32 dims: [ -1 ] }} ]
output [ {{ name: "OUTPUT" data_type: TYPE_FP32 dims: [ -1 ] }} ]
instance_group [ {{ kind: KIND_CPU count: 1 }} ]
"""
_PATH = "/inference.GRPCInferenceService/ModelInfer"


def _graph() -> bytes:
    body = helper.make_graph(
        [helper.make_node("Identity", ["INPUT"], ["OUTPUT"])],
        NAME,
        [helper.make_tensor_value_info("INPUT", TensorProto.FLOAT, ["length"])],
        [helper.make_tensor_value_info("OUTPUT", TensorProto.FLOAT, ["length"])],
    )
    proto = helper.make_model(body, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(proto)
    return bytes(proto.SerializeToString())


def _repository(root: Path, backend: str) -> Path:
    directory = root / NAME / "1"
    directory.mkdir(parents=True)
    (root / NAME / "config.pbtxt").write_text(_CONFIG.format(backend=backend))
    if backend == "python":
        shutil.copy(SCRIPTS / "identity.py", directory / "model.py")
    else:
        (directory / "model.onnx").write_bytes(_graph())
    return root


@contextmanager
def _http(port: int, tensor: bytes) -> Iterator[Callable[[], memoryview]]:
    """Yield a function that infers over one connection.

    The function returns a view of the response's tensor.
    """
    size = len(tensor)
    header = (
        b'{"inputs":[{"name":"INPUT","datatype":"FP32","shape":[%d],"parameters":'
        b'{"binary_data_size":%d}}],"parameters":{"binary_data_output":true}}' % (size // 4, size)
    )
    head = (
        b"POST /v2/models/identity/infer HTTP/1.1\r\nHost: x\r\n"
        b"Inference-Header-Content-Length: %d\r\nContent-Length: %d\r\n\r\n"
        % (len(header), len(header) + size)
    )
    response = memoryview(bytearray(size + 65536))
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

        def infer() -> memoryview:
            connection.sendall(head + header)
            connection.sendall(tensor)
            got, end = 0, 0
            while not end or got < end:
                count = connection.recv_into(response[got:])
                if not count:
                    raise ConnectionError("the server closed the connection")
                got += count
                if not end:
                    end = _end_of_response(bytes(response[: min(got, 4096)]))
            return response[end - size : end]

        yield infer


def _end_of_response(beginning: bytes) -> int:
    """Return the length of a response that begins so, or 0 if its head is incomplete."""
    head, blank, _ = beginning.partition(b"\r\n\r\n")
    if not blank:
        return 0
    if not head.startswith(b"HTTP/1.1 200"):
        raise ConnectionError(beginning.decode(errors="replace"))
    length = next(
        line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")
    )
    return len(head) + 4 + int(length.partition(b":")[2])


@contextmanager
def _grpc(port: int, tensor: bytes) -> Iterator[Callable[[], memoryview]]:
    request = kserve_pb2.ModelInferRequest(model_name=NAME)
    request.inputs.add(name="INPUT", datatype="FP32", shape=[len(tensor) // 4])
    message = request.SerializeToString() + b"\x3a" + _varint(len(tensor)) + tensor
    unlimited = [(f"grpc.max_{way}_message_length", -1) for way in ("send", "receive")]
    with grpc.insecure_channel(f"127.0.0.1:{port}", unlimited) as channel:
        call: Any = channel.unary_unary(_PATH)

        def infer() -> memoryview:
            return memoryview(call(message))[-len(tensor) :]

        yield infer


def _varint(value: int) -> bytes:
    parts = bytearray()
    while value > 127:
        parts.append(value & 127 | 128)
        value >>= 7
    return bytes([*parts, value])


_PROTOCOLS = {"http": _http, "grpc": _grpc}


def _serve(
    name: str, work: Path, arguments: argparse.Namespace, stack: ExitStack
) -> tuple[ServerProcess, list[int]]:
    ports = free_ports(3)
    three = (ports[0], ports[1], ports[2])
    if name == "nereid":
        repository = _repository(work / name, arguments.nereid_backend)
        command = nereid.command(repository, work / "nereid.log", three, arguments.nereid_flags)
    else:
        triton.ensure_venv(arguments.triton_venv)
        repository = _repository(work / name, "python")
        command = triton.command(arguments.triton_venv, repository, work / "triton.log", three)
    server = stack.enter_context(ServerProcess(command))
    _await_ready(server, ports[0])
    return server, list(ports)


def _await_ready(server: ServerProcess, port: int) -> None:
    probe = struct.pack("<4f", 1, 2, 3, 4)
    deadline = time.monotonic() + 60
    while True:
        try:
            with _http(port, probe) as infer:
                infer()
                return
        except OSError:
            if not server.alive or time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def _measure(infer: Callable[[], memoryview], tensor: bytes, rounds: int) -> float:
    """Return the median of the rounds in seconds; the first round only checks the response."""
    if infer() != tensor:
        raise ValueError("the response is not what was sent")
    taken = []
    for _ in range(rounds):
        start = time.perf_counter()
        infer()
        taken.append(time.perf_counter() - start)
    return statistics.median(taken)


def _memcpy_s(tensor: bytes, rounds: int) -> float:
    """Return the median time of a copy between two buffers that are mapped already."""
    source, target = np.frombuffer(tensor, np.uint8).copy(), np.zeros(len(tensor), np.uint8)
    taken = []
    for _ in range(rounds + 1):
        start = time.perf_counter()
        np.copyto(target, source)
        taken.append(time.perf_counter() - start)
    return statistics.median(taken[1:])


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.large", description=__doc__)
    parser.add_argument("--kib", type=int, action="append", help="sizes; default: 200 MB")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", action="append", choices=("nereid", "triton"))
    parser.add_argument("--nereid-flags", type=shlex.split, default=[], help="for nereid serve")
    parser.add_argument(
        "--nereid-backend",
        choices=("onnxruntime", "python"),
        default="onnxruntime",
        help="python: the very model.py that Triton serves",
    )
    parser.add_argument("--triton-venv", type=Path, default=triton.DEFAULT_VENV)
    arguments = parser.parse_args(argv)
    sizes = [kib << 10 for kib in arguments.kib or ()] or [200_000_000]
    with ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="nereid-bench-")))
        peers = {
            name: _serve(name, work, arguments, stack)
            for name in arguments.only or ("nereid", "triton")
        }
        for size in sizes:
            tensor = np.random.default_rng(1).bytes(size)
            copy_s = _memcpy_s(tensor, arguments.rounds)
            print(f"{size:>12,} bytes: memcpy {copy_s * 1e3:.2f} ms", flush=True)
            for protocol, connect in _PROTOCOLS.items():
                for name, (server, ports) in peers.items():
                    cpu_s = server.cpu_s().total()
                    with connect(ports[protocol == "grpc"], tensor) as infer:
                        taken_s = _measure(infer, tensor, arguments.rounds)
                    cpu_s = (server.cpu_s().total() - cpu_s) / (arguments.rounds + 1)
                    print(
                        f"    {protocol} {name}: {taken_s * 1e3:.2f} ms,"
                        f" {taken_s / copy_s:.1f} memcpys; CPU of the server"
                        f" {cpu_s * 1e3:.2f} ms, {cpu_s / copy_s:.1f} memcpys",
                        flush=True,
                    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
