"""Honest clients in a process of their own.

python -m tests.support.hostile.honest_process HTTP [GRPC] [--texts] [--cached]

They ask for health (each time on a new connection, and on one that is kept), for small inferences
over both protocols and for vectors of texts, check each answer, and note how long they waited.
`begin` on standard input starts a measurement; `end` finishes it, once each client has had one more
answer, and prints it as JSON. With --cached they also ask for a few responses of cached_fp32 again
and again.
"""

from __future__ import annotations

import asyncio
import json
import struct
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import grpc
import grpc.aio
import uvloop

from nereid.pb import kserve_pb2

SOURCE = "127.0.0.1"
_LIVE = b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n"
# For as long as it takes: how long others wait is what is measured.
_PATIENCE_S = 60.0
# Responses that are asked for again and again.
_CACHED = 20

Ask = Callable[[], Awaitable[None]]


class WrongResponseError(Exception):
    """An answer, but not the right one."""


class RefusedError(Exception):
    """The mesh, or a limit of this client's address, is full."""


@dataclass
class Measurement:
    """Measurement of what the honest clients saw."""

    requests: int = 0
    # Lag of this process itself: a wait that the machine caused, not the mesh.
    own_lag_s: float = 0.0
    longest_s: dict[str, float] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)


class _KeptHttp:
    """A kept connection."""

    def __init__(self, address: str) -> None:
        self._host, _, port = address.rpartition(":")
        self._port = int(port)
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, request: bytes) -> tuple[int, bytes]:
        """Status and body."""
        if self._streams is None:
            self._streams = await asyncio.open_connection(
                self._host, self._port, local_addr=(SOURCE, 0)
            )
        reader, writer = self._streams
        try:
            writer.write(request)
            head = await reader.readuntil(b"\r\n\r\n")
            _, _, size = head.lower().partition(b"\r\ncontent-length:")
            body = await reader.readexactly(int(size.split(b"\r\n")[0] or 0))
        except BaseException:
            self.close()
            raise
        if b"connection: close" in head.lower():
            self.close()
        if head[9:12] in (b"429", b"503"):
            raise RefusedError(f"{head[9:12].decode()} {body[:200]!r}")
        return int(head[9:12]), body

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


def _check(found: object, expected: object) -> None:
    if found != expected:
        raise WrongResponseError(f"{str(found)[:200]!r} instead of {str(expected)[:200]!r}")


class HonestClients:
    def __init__(
        self, http: str, grpc_address: str = "", *, texts: bool = False, cached: bool = False
    ) -> None:
        """grpc_address: with none, all is over HTTP. texts: whether to ask for vectors.

        cached: whether to ask for responses that the cache may have.
        """
        self._http, self._number = http, 0
        self.measurement = Measurement()
        kept = _KeptHttp(http)
        binary, text, long_text = _KeptHttp(http), _KeptHttp(http), _KeptHttp(http)
        # A name, what to ask, and how often in seconds.
        self.clients: list[tuple[str, Ask, float]] = [
            ("live on new connections", self._live_on_new_connection, 0.03),
            ("live", lambda: self._live(kept), 0.02),
            ("infer binary", lambda: self._infer_binary(binary), 0.04),
            ("infer JSON", lambda: self._infer_json(text, 8), 0.06),
            ("infer 40 KB of JSON", lambda: self._infer_json(long_text, 5_000), 0.1),
        ]
        if texts:
            vectors = _KeptHttp(http)
            self._vectors: list[list[float]] = []
            self.clients.append(("vectors of texts", lambda: self._embed(vectors), 0.05))
        if cached:
            kept_cached = _KeptHttp(http)
            self.clients.append(
                ("infer cached", lambda: self._infer_json(kept_cached, 8, "cached_fp32"), 0.04)
            )
        if grpc_address:
            channel = grpc.aio.insecure_channel(grpc_address)
            self._infer: Any = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
            self.clients.append(("infer gRPC", self._infer_grpc, 0.04))

    def _next(self) -> float:
        self._number = (self._number + 1) % 100_000
        return float(self._number)

    async def _live_on_new_connection(self) -> None:
        connection = _KeptHttp(self._http)
        await self._live(connection)
        connection.close()

    async def _live(self, connection: _KeptHttp) -> None:
        _check(await connection.ask(_LIVE), (200, b""))

    async def _infer_binary(self, connection: _KeptHttp) -> None:
        tensor = struct.pack("<8f", *([self._next()] * 8))
        header = (
            b'{"inputs":[{"name":"INPUT0","shape":[1,8],"datatype":"FP32","parameters":'
            b'{"binary_data_size":32}}],"parameters":{"binary_data_output":true}}'
        )
        head = (
            "POST /v2/models/identity_fp32/infer HTTP/1.1\r\nHost: x\r\n"
            f"Inference-Header-Content-Length: {len(header)}\r\n"
            f"Content-Length: {len(header) + 32}\r\n\r\n"
        )
        status, body = await connection.ask(head.encode() + header + tensor)
        _check((status, body[-32:]), (200, tensor))

    async def _infer_json(
        self, connection: _KeptHttp, count: int, model: str = "identity_fp32"
    ) -> None:
        value = self._next()
        values = [value if model == "identity_fp32" else value % _CACHED] * count
        tensor = {"name": "INPUT0", "shape": [1, count], "datatype": "FP32", "data": values}
        document = {"inputs": [tensor]}
        text = json.dumps(document)
        head = (
            f"POST /v2/models/{model}/infer HTTP/1.1\r\nHost: x\r\n"
            f"Content-Length: {len(text)}\r\n\r\n"
        )
        status, body = await connection.ask((head + text).encode())
        _check(status, 200)
        _check(json.loads(body)["outputs"][0]["data"], values)

    async def _embed(self, connection: _KeptHttp) -> None:
        text = b'{"model":"texts","inputs":["the cat","rain rose"]}'
        head = f"POST /embed HTTP/1.1\r\nHost: x\r\nContent-Length: {len(text)}\r\n\r\n"
        status, body = await connection.ask(head.encode() + text)
        _check(status, 200)
        # Batches of other lengths change the last digits.
        vectors = json.loads(body)
        self._vectors = self._vectors or vectors
        pairs = zip(vectors, self._vectors, strict=True)
        differences = [abs(a - b) for pair in pairs for a, b in zip(*pair, strict=True)]
        _check([each for each in differences if each > 1e-4], [])

    async def _infer_grpc(self) -> None:
        tensor = struct.pack("<8f", *([self._next()] * 8))
        request = kserve_pb2.ModelInferRequest(
            model_name="identity_fp32", raw_input_contents=[tensor]
        )
        request.inputs.add(name="INPUT0", datatype="FP32", shape=[1, 8])
        reply = await self._infer(request.SerializeToString(), timeout=_PATIENCE_S)
        response = kserve_pb2.ModelInferResponse.FromString(reply)
        _check(list(response.raw_output_contents), [tensor])

    async def run(self, name: str, ask: Ask, interval_s: float, ended: asyncio.Event) -> None:
        """Ask again and again until `ended`, and once more."""
        last = False
        while not last:
            last = ended.is_set()
            measurement, start = self.measurement, time.monotonic()
            try:
                async with asyncio.timeout(_PATIENCE_S):
                    await ask()
            except WrongResponseError as error:
                measurement.wrong.append(f"{name}: {error}")
            except RefusedError as error:
                measurement.refused.append(f"{name}: {error}")
            except grpc.aio.AioRpcError as error:
                full = error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
                noted = measurement.refused if full else measurement.errors
                noted.append(f"{name}: {error.code()}: {error.details()}")
            except (OSError, EOFError, TimeoutError) as error:
                measurement.errors.append(f"{name}: {error!r}")
            waited = time.monotonic() - start
            measurement.requests += 1
            measurement.longest_s[name] = max(measurement.longest_s.get(name, 0), waited)
            if not last:
                await asyncio.sleep(interval_s)

    async def watch_own_lag(self, ended: asyncio.Event) -> None:
        while not ended.is_set():
            start = time.monotonic()
            await asyncio.sleep(0.005)
            lag = time.monotonic() - start - 0.005
            self.measurement.own_lag_s = max(self.measurement.own_lag_s, lag)


async def _standard_input() -> asyncio.StreamReader:
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
    )
    return reader


def _report(document: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(document) + "\n")
    sys.stdout.flush()


async def main() -> None:
    addresses = [argument for argument in sys.argv[1:] if not argument.startswith("--")]
    clients = HonestClients(*addresses, texts="--texts" in sys.argv, cached="--cached" in sys.argv)
    commands = await _standard_input()
    while await commands.readline():
        clients.measurement, ended = Measurement(), asyncio.Event()
        tasks = [asyncio.create_task(clients.run(*each, ended)) for each in clients.clients] + [
            asyncio.create_task(clients.watch_own_lag(ended))
        ]
        _report({})
        await commands.readline()
        ended.set()
        await asyncio.gather(*tasks)
        _report(asdict(clients.measurement))


if __name__ == "__main__":
    uvloop.run(main())
