"""Clients of this host that name their shared memory, which may be any size, and shrink."""

from __future__ import annotations

import json
import os
import threading
import time
from contextlib import ExitStack
from pathlib import Path

from tests.support.hostile.attack import ANY, REFUSED, SERVED, Attack, Client, Target
from tests.support.hostile.raw_clients import HttpClient, post
from tests.support.hostile.sending import INFER, ask

_KIB, _MIB, _GIB = 1 << 10, 1 << 20, 1 << 30
_REGIONS = "/v2/systemsharedmemory/region/"
_FOLDER = Path("/dev/shm")


def _object(stack: ExitStack, size_bytes: int) -> Path:
    """A new object without a single page."""
    path = _FOLDER / f"nereid-hostile-{os.getpid()}-{time.monotonic_ns()}"
    path.touch()
    stack.callback(path.unlink)
    os.truncate(path, size_bytes)
    return path


def _register(name: str, key: str, size_bytes: int, offset: int = 0) -> bytes:
    body = json.dumps({"key": key, "offset": offset, "byte_size": size_bytes}).encode()
    return post(f"{_REGIONS}{name}/register", body)


def _infer(name: str, size_bytes: int, *lines: str, offset: int = 0) -> bytes:
    """A request whose input is in the region, and whose output goes there."""
    where = {"shared_memory_region": name, "shared_memory_byte_size": size_bytes}
    where["shared_memory_offset"] = offset
    tensor = {"name": "INPUT0", "datatype": "FP32", "shape": [1, size_bytes // 4]}
    document = {
        "inputs": [tensor | {"parameters": where}],
        "outputs": [{"name": "OUTPUT0", "parameters": where}],
    }
    return post(INFER, json.dumps(document).encode(), *lines)


def _reads(size_bytes: int, count: int = 1, *, offset: int = 0, shrinks: bool = False) -> Client:
    """Pipelined requests that read a region; shrinks: again and again meanwhile."""

    def client(target: Target) -> str:
        with ExitStack() as stack:
            path = _object(stack, size_bytes)
            outcome = ask(target, _register(path.name, path.name, size_bytes))
            if outcome != "status 200":
                return outcome
            stack.callback(ask, target, post(f"{_REGIONS}{path.name}/unregister"))
            if shrinks:
                ended = threading.Event()
                shrinking = threading.Thread(target=_shrink, args=(path, size_bytes, ended))
                shrinking.start()
                stack.callback(shrinking.join)
                stack.callback(ended.set)
            if count == 1:
                return ask(target, _infer(path.name, size_bytes, offset=offset))
            connection = HttpClient(target.http, target.source)
            stack.callback(connection.close)
            connection.pipelined = True
            requests = _infer(path.name, size_bytes) * (count - 1)
            requests += _infer(path.name, size_bytes, "Connection: close")
            connection.pump(requests, until=lambda: False, limit_s=2)
            return connection.outcome

    return client


def _shrink(path: Path, size_bytes: int, ended: threading.Event) -> None:
    while not ended.is_set():
        os.truncate(path, 0)
        os.truncate(path, size_bytes)


def _many_regions(count: int) -> Client:
    """More regions than there may be; what became of the last one."""

    def client(target: Target) -> str:
        with ExitStack() as stack:
            paths = [_object(stack, 4 * _KIB) for _ in range(count)]
            connection = HttpClient(target.http, target.source)
            connection.pipelined = True
            stack.callback(ask, target, post("/v2/systemsharedmemory/unregister"))
            stack.callback(connection.close)
            requests = b"".join(
                _register(f"r{number}", path.name, 4 * _KIB) for number, path in enumerate(paths)
            )
            last = post(f"{_REGIONS}none/status", b"", "Connection: close", method="GET")
            connection.pump(requests + last, until=lambda: False, limit_s=30)
            return ask(target, _register("last", _object(stack, 4 * _KIB).name, 4 * _KIB))

    return client


# The executor's runtime has, and keeps, input, copy and output of 64 MiB.
_RUNTIME_MIB = 3 * 64

# Each with its harmless twin.
ATTACKS = (
    Attack("an input of 64 GiB in shared memory", _reads(64 * _GIB)),
    Attack(
        "200 inputs of 64 MiB in shared memory", _reads(64 * _MIB, 200), ANY, more_mib=_RUNTIME_MIB
    ),
    Attack(
        "200 inputs of 4 KiB in shared memory", _reads(4 * _KIB, 200), SERVED, more_mib=_RUNTIME_MIB
    ),
    Attack(
        "inputs in shared memory that shrinks",
        _reads(64 * _MIB, 40, shrinks=True),
        ANY,
        more_mib=_RUNTIME_MIB,
    ),
    Attack(
        "an offset of 2^64 - 4 in shared memory",
        _reads(4 * _KIB, offset=(1 << 64) - 4),
        REFUSED,
    ),
    Attack("5,000 regions of shared memory", _many_regions(5000), REFUSED),
    Attack("100 regions of shared memory", _many_regions(100), SERVED),
)
