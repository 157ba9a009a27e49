"""HTTP/1.1 on a connection: however the bytes are cut, the same requests and responses."""

from __future__ import annotations

import asyncio
import atexit
from typing import TYPE_CHECKING, Any

from nereid_gateway.server.connection import HttpConnection
from nereid_gateway.server.limits import HttpLimits
from tests.support.gateway.http_site import ConnectionLog

if TYPE_CHECKING:
    from nereid_gateway.server.call import HttpCall

MAX_BYTES = 2048
_LIMITS = HttpLimits(max_body_bytes=600, max_chunks=20, max_pipelined=3, linger_s=0)
_HEADERS = b"Host: x\r\nUser-Agent: seed\r\n"


def _post(body: bytes, *lines: bytes, target: bytes = b"/v2/models/m/infer") -> bytes:
    head = b"POST %b HTTP/1.1\r\n%bContent-Length: %d\r\n" % (target, _HEADERS, len(body))
    return head + b"".join(line + b"\r\n" for line in lines) + b"\r\n" + body


_CHUNKED = (
    b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"5\r\nhello\r\n3;ext=1\r\nabc\r\n0\r\nTrailer: 1\r\n\r\n"
)
# The first byte says how to cut what follows.
SEEDS = [
    b"\x01" + b"GET /v2/health/live HTTP/1.1\r\n" + _HEADERS + b"\r\n",
    b"\x02" + _post(b"{}") * 4,
    b"\x03" + _post(b"{}", b"Inference-Header-Content-Length: 2") + _post(b"", target=b"/other"),
    b"\x07" + _CHUNKED + _post(b"abc"),
    b"\x0b" + _post(b"abc", b"Expect: 100-continue"),
    b"\x10" + _post(b"abc", b"Connection: close") + _post(b"never"),
    b"\x20" + _post(b"abc", b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c") * 2,
    b"\x30" + _post(b"abc").replace(b"1.1", b"1.0"),
    b"\x40" + _post(b"x" * 700),
    b"\x50" + _post(b"abc", b"Transfer-Encoding: gzip, chunked"),
    b"\x05" + b"CONNECT host:1 HTTP/1.1\r\nHost: x\r\n\r\n",
    b"\x05" + b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"\x09" + b"OPTIONS * HTTP/1.1\r\nHost: x\r\nX: a\r\n b\r\n\r\n",
]
WORDS = [
    *(b"GET ", b"POST ", b"HEAD ", b"CONNECT ", b" HTTP/1.1\r\n", b" HTTP/1.0\r\n", b"\r\n\r\n"),
    *(b"Content-Length: ", b"Transfer-Encoding: chunked\r\n", b"Connection: close\r\n"),
    *(b"Expect: 100-continue\r\n", b"Upgrade: h2c\r\n", b"0\r\n\r\n", b"keep-alive", b"HTTP/2.0"),
]


class _Wire(asyncio.Transport):
    """The socket's side: keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.closed = False

    def write(self, data: Any) -> None:
        assert not self.closed
        self.written += data

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))

    def close(self) -> None:
        self.closed = True

    abort = close

    def is_closing(self) -> bool:
        return self.closed

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


_Seen = list[tuple[bytes, bytes, dict[bytes, bytes], bytes]]


def _drive(pieces: list[bytes]) -> tuple[_Seen, list[bytes], bool]:
    """The requests that came out, the statuses of the responses, and whether it was the end."""
    seen: _Seen = []

    def dispatch(call: HttpCall) -> None:
        seen.append((call.method, call.target, call.headers, call.body))
        call.respond(200, (b"%d" % len(call.body),))

    log = ConnectionLog()
    connection = HttpConnection(dispatch, _LIMITS, log)
    wire = _Wire()
    connection.connection_made(wire)
    for piece in pieces:
        if wire.closed:
            break
        connection.data_received(piece)
    responses = _responses(wire.written)
    ended = wire.closed or connection._responses.closing
    connection.connection_lost(None)
    assert log.connected == log.disconnected == [connection]
    assert not connection._responses.busy
    return seen, responses, ended


def _responses(data: bytes) -> list[bytes]:
    """The statuses of complete, well-formed responses; nothing else may have been written."""
    statuses = []
    while data:
        head, end, data = data.partition(b"\r\n\r\n")
        assert end, head
        first, *lines = head.split(b"\r\n")
        assert first.startswith(b"HTTP/1.1 "), first
        status = first[9:12]
        if status == b"100":
            continue
        statuses.append(status)
        fields = dict(line.lower().split(b": ", 1) for line in lines)
        size = int(fields[b"content-length"])
        if not data or data.startswith(b"HTTP/1.1 "):
            # A response to HEAD has no content.
            size = 0
        assert len(data) >= size
        data = data[size:]
    return statuses


async def _check(data: bytes) -> None:
    cut, data = data[0], data[1:]
    whole = _drive([data])
    step = cut % 61 + 1
    pieces = [data[at : at + step] for at in range(0, len(data), step)]
    assert _drive(pieces) == whole
    seen, responses, _ = whole
    refused = [status for status in responses if status != b"200"]
    assert len(refused) <= 1
    assert responses[: len(seen)] == [b"200"] * len(seen)


_loop: asyncio.AbstractEventLoop | None = None


def run(data: bytes) -> None:
    global _loop  # noqa: PLW0603 (a loop costs more to make than an input to try)
    if not data:
        return
    if _loop is None:
        _loop = asyncio.new_event_loop()
        atexit.register(_loop.close)
    _loop.run_until_complete(_check(data))
