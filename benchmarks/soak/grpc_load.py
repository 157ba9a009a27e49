"""Behaviour of clients over gRPC, good and bad.

Each function opens one connection, uses it, and returns how many requests were sent.
"""

import asyncio
import contextlib
import random
import struct
from typing import Any

import grpc
import grpc.aio

from nereid.pb import kserve_pb2

_SERVICE = "/inference.GRPCInferenceService/"
_LENGTHS = (1, 4, 16, 64, 250)
_LARGE = (20_000, 60_000, 250_000)
# Each channel has a connection of its own, as different clients have.
_OPTIONS = (("grpc.use_local_subchannel_pool", 1),)


def _channel(port: int) -> Any:
    return grpc.aio.insecure_channel(f"127.0.0.1:{port}", _OPTIONS)


def _message(
    model: str, elements: int, value: float, batch: bool = True, request_id: str = ""
) -> bytes:
    request = kserve_pb2.ModelInferRequest(model_name=model, id=request_id)
    shape = [1, elements] if batch else [elements]
    request.inputs.add(name="INPUT", datatype="FP32", shape=shape)
    request.raw_input_contents.append(struct.pack("<f", value) * elements)
    return request.SerializeToString()


async def grpc_unary(port: int, rng: random.Random) -> int:
    """Send requests one after the other."""
    async with _channel(port) as channel:
        call = channel.unary_unary(_SERVICE + "ModelInfer")
        for _ in range(20):
            await call(_message("small", rng.choice(_LENGTHS), rng.random(), request_id="7"))
    return 20


async def grpc_one(port: int, rng: random.Random) -> int:
    """Send one request on a connection."""
    async with _channel(port) as channel:
        await channel.unary_unary(_SERVICE + "ModelInfer")(_message("small", 16, rng.random()))
    return 1


async def grpc_at_once(port: int, rng: random.Random) -> int:
    """Send requests that share a connection at the same time."""
    async with _channel(port) as channel:
        call = channel.unary_unary(_SERVICE + "ModelInfer")
        await asyncio.gather(*(call(_message("small", 16, rng.random())) for _ in range(16)))
    return 16


async def grpc_large(port: int, rng: random.Random) -> int:
    """Send large requests."""
    async with _channel(port) as channel:
        call = channel.unary_unary(_SERVICE + "ModelInfer")
        for _ in range(3):
            await call(_message("small", rng.choice(_LARGE), rng.random()))
    return 3


async def grpc_cached(port: int, rng: random.Random) -> int:
    """Send requests whose responses are in the cache."""
    async with _channel(port) as channel:
        call = channel.unary_unary(_SERVICE + "ModelInfer")
        for _ in range(10):
            await call(_message("cached", 16, float(rng.randrange(100))))
    return 10


async def grpc_stream(port: int, rng: random.Random) -> int:
    """Send requests on a stream."""
    async with _channel(port) as channel:
        call = channel.stream_stream(_SERVICE + "ModelStreamInfer")()
        for _ in range(10):
            await call.write(_message("small", rng.choice(_LENGTHS), rng.random()))
            await call.read()
        await call.done_writing()
        await call.read()
    return 10


async def grpc_decoupled(port: int, _rng: random.Random) -> int:
    """Send requests to a decoupled model."""
    async with _channel(port) as channel:
        call = channel.stream_stream(_SERVICE + "ModelStreamInfer")()
        for _ in range(3):
            await call.write(_message("decoupled", 2, 4.0, batch=False))
            for _ in range(4):
                await call.read()
        await call.done_writing()
    return 3


async def grpc_errors(port: int, rng: random.Random) -> int:
    """Send requests that get errors; each error has a different text."""
    failing = [
        _message(f"m{rng.random()}", 1, 1.0),
        _message("small", 1, 1.0, batch=False),
        b"\xff" + str(rng.random()).encode(),
    ]
    async with _channel(port) as channel:
        call = channel.unary_unary(_SERVICE + "ModelInfer")
        for message in failing:
            try:
                await call(message)
            except grpc.aio.AioRpcError:
                continue
            raise ValueError("a request without an error")
    return len(failing)


async def grpc_cancelled(port: int, _rng: random.Random) -> int:
    """Make calls that end early: by a deadline, by a cancellation, and in a stream."""
    async with _channel(port) as channel:
        unary = channel.unary_unary(_SERVICE + "ModelInfer")
        slow = _message("script", 2, -5.0, batch=False)
        with contextlib.suppress(grpc.aio.AioRpcError):
            await unary(slow, timeout=0.002)
        call = unary(slow)
        await asyncio.sleep(0.001)
        call.cancel()
        stream = channel.stream_stream(_SERVICE + "ModelStreamInfer")()
        await stream.write(_message("decoupled", 2, 50.0, batch=False))
        await stream.read()
        stream.cancel()
    return 3


async def grpc_aborted(port: int, rng: random.Random) -> int:
    """End a connection in the middle of a message."""
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _frame(4, 0, 0, b""))
    headers = (
        b"\x83\x86"
        + _literal(":path", _SERVICE + "ModelInfer")
        + b"".join(
            _literal(*pair)
            for pair in (
                (":authority", "soak"),
                ("content-type", "application/grpc"),
                ("te", "trailers"),
            )
        )
    )
    writer.write(_frame(1, 4, 1, headers))
    length = rng.choice((1000, 60_000))
    writer.write(_frame(0, 0, 1, struct.pack(">BI", 0, length) + bytes(min(length, 16_000) // 2)))
    await writer.drain()
    writer.transport.abort()
    return 1


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def _literal(name: str, value: str) -> bytes:
    """Return a header without indexing and without Huffman's code."""
    parts = [b"\0"]
    for text in (name.encode(), value.encode()):
        parts += [bytes([len(text)]), text]
    return b"".join(parts)
