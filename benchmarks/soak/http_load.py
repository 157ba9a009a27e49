"""Behaviour of clients over HTTP, good and bad.

Each function opens one connection, uses it, and returns how many requests were sent.
"""

import asyncio
import contextlib
import json
import random
import struct
from typing import Self

# Sizes repeat: what a server remembers of each shape is bounded and has to be full soon.
_LENGTHS = (1, 4, 16, 64, 250)
_LARGE = (20_000, 60_000, 250_000)


class Connection:
    """Keep-alive connection to the gateway's HTTP port."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def open(cls, port: int) -> Self:
        """Open a connection."""
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    async def request(self, path: str, body: bytes = b"", header: bytes = b"") -> tuple[int, bytes]:
        """Send a request, and return the response's status and body."""
        self.writer.write(_head(path, len(body), header) + body)
        head = await self.reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"\r\ncontent-length:")[2].split()[0])
        return int(head.split()[1]), await self.reader.readexactly(length)

    async def close(self) -> None:
        """Close the connection."""
        self.writer.close()
        with contextlib.suppress(ConnectionError):
            await self.writer.wait_closed()

    def abort(self) -> None:
        """Abort the connection."""
        self.writer.transport.abort()


def _head(path: str, length: int, header: bytes = b"") -> bytes:
    method = b"POST" if length else b"GET"
    more = b"Content-Length: %d\r\n" % length if length else b""
    return b"%s %s HTTP/1.1\r\nHost: soak\r\n%s%s\r\n" % (method, path.encode(), more, header)


def _infer(model: str) -> str:
    return f"/v2/models/{model}/infer"


def _json(data: list[float] | list[str], datatype: str, shape: list[int], **more: object) -> bytes:
    tensor = {"name": "INPUT", "datatype": datatype, "shape": shape, "data": data}
    return json.dumps({"inputs": [tensor], **more}).encode()


def _binary(elements: int, value: float, batch: bool = True) -> tuple[bytes, bytes]:
    """Return the body and the header that divides it."""
    shape = [1, elements] if batch else [elements]
    payload = struct.pack("<f", value) * elements
    parameters = {"binary_data_size": len(payload)}
    tensor = {"name": "INPUT", "datatype": "FP32", "shape": shape, "parameters": parameters}
    head = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    return head + payload, b"Inference-Header-Content-Length: %d\r\n" % len(head)


async def _many(
    port: int, requests: list[tuple[str, bytes, bytes]], *, errors: bool = False
) -> int:
    connection = await Connection.open(port)
    for path, body, header in requests:
        got, reply = await connection.request(path, body, header)
        if (got >= 400) != errors:
            raise ValueError(f"{path}: {got}: {reply[:200]!r}")
    await connection.close()
    return len(requests)


async def http_json(port: int, rng: random.Random) -> int:
    """Send requests in JSON."""
    requests = []
    for _ in range(20):
        length = rng.choice(_LENGTHS)
        body = _json([rng.random()] * length, "FP32", [1, length], id=str(rng.random()))
        requests.append((_infer("small"), body, b""))
    return await _many(port, requests)


async def http_binary(port: int, rng: random.Random) -> int:
    """Send requests with binary tensors."""
    bodies = [_binary(rng.choice(_LENGTHS), rng.random()) for _ in range(20)]
    return await _many(port, [(_infer("small"), *body) for body in bodies])


async def http_one(port: int, rng: random.Random) -> int:
    """Send one request on a connection."""
    return await _many(port, [(_infer("small"), *_binary(16, rng.random()))])


async def http_large(port: int, rng: random.Random) -> int:
    """Send large requests."""
    bodies = [_binary(rng.choice(_LARGE), rng.random()) for _ in range(3)]
    return await _many(port, [(_infer("small"), *body) for body in bodies])


async def http_text(port: int, rng: random.Random) -> int:
    """Send texts."""
    words = [str(rng.random()), "ö" * rng.randrange(50), ""]
    body = _json(words, "BYTES", [1, len(words)])
    return await _many(port, [(_infer("text"), body, b"")] * 10)


async def http_cached(port: int, rng: random.Random) -> int:
    """Send requests whose responses are in the cache, and sometimes one that is not."""
    values = [float(rng.randrange(100)) for _ in range(18)] + [rng.random()] * 2
    return await _many(port, [(_infer("cached"), *_binary(16, value)) for value in values])


async def http_script(port: int, rng: random.Random) -> int:
    """Send requests to a Python model."""
    bodies = [_binary(rng.choice((4, 40_000)), rng.random(), batch=False) for _ in range(4)]
    return await _many(port, [(_infer("script"), *body) for body in bodies])


async def http_control(port: int, rng: random.Random) -> int:
    """Call the control plane."""
    paths = ["health/live", "health/ready", "models/small/config", "models/stats"]
    return await _many(port, [(f"/v2/{path}", b"", b"") for path in rng.sample(paths, 4)])


async def http_errors(port: int, rng: random.Random) -> int:
    """Send requests that get errors; each error has a different text."""
    valid = _json([1.0], "FP32", [1, 1])
    malformed = [b'{"inputs": [' + str(rng.random()).encode(), b"{", _json([1.0], "INT8", [1, 1])]
    requests = [
        (_infer(f"m{rng.random()}"), valid, b""),
        (f"/{rng.random()}", b"", b""),
        *((_infer("small"), body, b"") for body in malformed),
    ]
    return await _many(port, requests, errors=True)


async def http_broken(port: int, rng: random.Random) -> int:
    """Send bytes that are no HTTP."""
    connection = await Connection.open(port)
    connection.writer.write(b"\x00%d nonsense\r\n\r\n" % rng.randrange(1000))
    await connection.reader.read()
    await connection.close()
    return 1


async def http_aborted(port: int, rng: random.Random) -> int:
    """End an upload in the middle."""
    connection = await Connection.open(port)
    body, header = _binary(rng.choice((1000, *_LARGE)), 1.0)
    connection.writer.write(_head(_infer("small"), len(body), header) + body[: len(body) // 2])
    await connection.writer.drain()
    connection.abort()
    return 1


async def http_cancelled(port: int, _rng: random.Random) -> int:
    """Send a request, and close the connection before the response."""
    connection = await Connection.open(port)
    body, header = _binary(4, -5.0, batch=False)
    connection.writer.write(_head(_infer("script"), len(body), header) + body)
    await connection.writer.drain()
    await asyncio.sleep(0.001)
    connection.abort()
    return 1


async def http_idle(port: int, _rng: random.Random) -> int:
    """Open a connection without a request."""
    connection = await Connection.open(port)
    await connection.close()
    return 0
