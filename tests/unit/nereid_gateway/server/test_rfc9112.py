"""HTTP/1.1 section by section: RFC 9112, and what RFC 9110 says about messages on a connection.

Each row is what a client sends, the responses to it, and whether the connection stays open.
"""

from __future__ import annotations

import asyncio

import pytest

from nereid_gateway.server.limits import HttpLimits
from tests.support.gateway.http_site import (
    WAIT_S,
    HttpSite,
    read_response,
    request,
    rest,
)

LIMITS = HttpLimits(max_body_bytes=1000, max_header_bytes=4096)
KEPT, CLOSED = True, False
GET = "GET /echo HTTP/1.1"
POST = "POST /echo HTTP/1.1"
HOST = "Host: x"
CHUNKED = "Transfer-Encoding: chunked"
NO_CHUNKS = b"0\r\n\r\n"
GOT = (200, b"GET ")
ABC = (200, b"POST abc")
BAD = (400, b"malformed HTTP request")


def head(*lines: str) -> bytes:
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n"


# What is sent; of each response the status and how its body begins; is the connection kept?
ROWS: dict[str, tuple[bytes, list[tuple[int, bytes]], bool]] = {
    "9112 2.2 empty lines before a request": (b"\r\n\r\n" + head(GET, HOST), [GOT], KEPT),
    "9112 2.2 a bare line feed": (b"GET /echo HTTP/1.1\nHost: x\n\n", [BAD], CLOSED),
    "9112 2.2 a bare carriage return": (head("GET /echo\r HTTP/1.1", HOST), [BAD], CLOSED),
    "9112 2.2 space before the first field": (head(GET, " Host: x", "A: b"), [BAD], CLOSED),
    "9112 2.2 not HTTP": (b"\x16\x03\x01\x02\0\1\0\1\xfc\3\3", [BAD], CLOSED),
    "9112 2.3 a lower version": (head("GET /echo HTTP/1.0", HOST), [GOT], CLOSED),
    "9112 2.3 an unknown minor version": (head("GET /echo HTTP/1.2"), [BAD], CLOSED),
    "9110 15.6.6 a higher version": (head("GET /echo HTTP/2.0"), [(505, b"")], CLOSED),
    "9110 15.6.6 no version": (b"GET /echo\r\n\r\n", [(505, b"")], CLOSED),
    "9113 3.4 HTTP/2's preface": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", [BAD], CLOSED),
    "9112 3.1 methods are case-sensitive": (head("get /echo HTTP/1.1", HOST), [BAD], CLOSED),
    "9112 3.1 an unknown method": (head("BREW /echo HTTP/1.1", HOST), [BAD], CLOSED),
    "9112 3.2 no space in a target": (head("GET /ec ho HTTP/1.1", HOST), [BAD], CLOSED),
    # The RFC wants both refused; Triton takes them, and so do its scripts.
    "9112 3.2 no Host": (head(GET), [GOT], KEPT),
    "9112 3.2 two Hosts": (head(GET, HOST, HOST), [GOT], KEPT),
    "9112 3.2.3 CONNECT": (head("CONNECT x:80 HTTP/1.1", HOST), [(405, b"")], CLOSED),
    "9112 5 a line without a colon": (head(GET, HOST, "A"), [BAD], CLOSED),
    "9112 5.1 space before the colon": (head(GET, "Host : x"), [BAD], CLOSED),
    "9112 5.1 no name": (head(GET, HOST, ": x"), [BAD], CLOSED),
    "9112 5.1 a control character in a name": (head(GET, HOST, "A\x01: b"), [BAD], CLOSED),
    "9112 5.2 a folded line": (head(GET, HOST, "A: b", " c"), [BAD], CLOSED),
    "9110 5.5 NUL in a value": (head(GET, HOST, "A: b\0c"), [BAD], CLOSED),
    "9110 5.5 a carriage return in a value": (head(GET, HOST, "A: b\rc"), [BAD], CLOSED),
    "9110 5.5 an empty value, and opaque bytes": (head(GET, HOST, "A:", "B: \xff"), [GOT], KEPT),
    "9112 6.1 two codings": (
        head(POST, HOST, "Transfer-Encoding: gzip, chunked") + NO_CHUNKS,
        [(501, b"no transfer coding but chunked")],
        CLOSED,
    ),
    "9112 6.1 two codings on two lines": (
        head(POST, HOST, "Transfer-Encoding: gzip", "Transfer-Encoding: chunked") + NO_CHUNKS,
        [(501, b"no transfer coding but chunked")],
        CLOSED,
    ),
    "9112 6.1 chunked is not the last coding": (
        head(POST, HOST, "Transfer-Encoding: chunked, gzip") + NO_CHUNKS,
        [BAD],
        CLOSED,
    ),
    "9112 6.1 an unknown coding": (
        head(POST, HOST, "Transfer-Encoding: xchunked") + NO_CHUNKS,
        [(501, b"no transfer coding but chunked")],
        CLOSED,
    ),
    "9112 6.1 chunked in capitals": (
        head(POST, HOST, "Transfer-Encoding: CHUNKED") + b"3\r\nabc\r\n" + NO_CHUNKS,
        [ABC],
        KEPT,
    ),
    "9112 6.1 chunked twice": (head(POST, HOST, CHUNKED, CHUNKED) + NO_CHUNKS, [BAD], CLOSED),
    "9112 6.1 chunks of HTTP/1.0": (
        head("POST /echo HTTP/1.0", CHUNKED, "Connection: keep-alive") + NO_CHUNKS,
        [(200, b"POST ")],
        CLOSED,
    ),
    "9112 6.3 both lengths": (
        head(POST, HOST, "Content-Length: 5", CHUNKED) + NO_CHUNKS,
        [BAD],
        CLOSED,
    ),
    "9112 6.3 two lengths": (
        head(POST, HOST, "Content-Length: 3", "Content-Length: 4") + b"abc",
        [BAD],
        CLOSED,
    ),
    **{
        f"9110 8.6 a length of '{length}'": (
            head(POST, HOST, f"Content-Length: {length}") + b"abc",
            [BAD],
            CLOSED,
        )
        for length in ("+3", "-3", "0x3", "3 3", "3, 3", "", "3.0", str(1 << 64))
    },
    "9110 8.6 a length with leading zeros": (
        head(POST, HOST, "Content-Length: 003") + b"abc",
        [ABC],
        KEPT,
    ),
    "9112 6.3 no length is no body": (head(POST, HOST), [(200, b"POST ")], KEPT),
    "9110 9.3.1 GET with a body": (
        head(GET, HOST, "Content-Length: 3") + b"abc",
        [(200, b"GET abc")],
        KEPT,
    ),
    "9112 7.1 sizes in hexadecimal": (
        head(POST, HOST, CHUNKED) + b"A\r\n0123456789\r\n00b\r\n0123456789a\r\n" + NO_CHUNKS,
        [(200, b"POST 01234567890123456789a")],
        KEPT,
    ),
    **{
        f"9112 7.1 chunks like {chunks!r}": (head(POST, HOST, CHUNKED) + chunks, [BAD], CLOSED)
        for chunks in (
            b"-1\r\n",
            b"x\r\n",
            b"3\nabc\n0\n\n",
            b"3\r\nabcX\r\n0\r\n\r\n",
            b"3\r\nabc0\r\n\r\n",
            b"f" * 17 + b"\r\n",
        )
    },
    "9112 7.1.1 extensions are passed over": (
        head(POST, HOST, CHUNKED) + b'3;a=b;c="d"\r\nabc\r\n0;e\r\n\r\n',
        [ABC],
        KEPT,
    ),
    "9112 7.1.2 trailers are passed over": (
        head(POST, HOST, CHUNKED) + b"3\r\nabc\r\n0\r\nA: b\r\n\r\n",
        [ABC],
        KEPT,
    ),
    "9110 6.5.1 a length as a trailer": (
        head(POST, HOST, CHUNKED) + b"3\r\nabc\r\n0\r\nContent-Length: 7\r\n\r\n",
        [BAD],
        CLOSED,
    ),
    "9112 9.3 close": (head(GET, HOST, "Connection: close") + request(), [GOT], CLOSED),
    "9112 9.3 close and keep-alive": (
        head(GET, HOST, "Connection: keep-alive, close") + request(),
        [GOT],
        CLOSED,
    ),
    "9112 9.3 keep-alive of HTTP/1.0": (
        head("GET /echo HTTP/1.0", "Connection: keep-alive"),
        [GOT],
        KEPT,
    ),
    "9112 9.3.2 many at once": (
        head(GET, HOST) * 3 + request(body=b"abc") + head(GET, HOST),
        [GOT, GOT, GOT, ABC, GOT],
        KEPT,
    ),
    "9110 7.8 an offer to upgrade": (
        head(GET, HOST, "Connection: upgrade", "Upgrade: websocket"),
        [GOT],
        KEPT,
    ),
    "9110 10.1.1 what else may be expected": (
        head(POST, HOST, "Expect: a miracle", "Content-Length: 3"),
        [(417, b"only 100-continue")],
        CLOSED,
    ),
    "9110 10.1.1 100-continue in capitals, with the body": (
        head(POST, HOST, "Expect: 100-Continue", "Content-Length: 3") + b"abc",
        [ABC],
        KEPT,
    ),
}


@pytest.mark.parametrize("name", ROWS)
async def test_section(site: HttpSite, name: str) -> None:
    sent, expected, kept = ROWS[name]
    reader, writer = await site.connect()
    writer.write(sent)
    for status, beginning in expected:
        got, fields, body = await read_response(reader)
        assert got == status
        assert body.removeprefix(b'{"error":"').startswith(beginning)
    assert (b"\r\nConnection: close\r\n" in fields) is not kept
    assert (b"\r\nConnection: keep-alive\r\n" in fields) is (kept and b"HTTP/1.0" in sent)
    if kept:
        writer.write(request(body=b"still there"))
        assert (await read_response(reader))[2] == b"POST still there"
    else:
        assert await rest(reader) == b""
    # Other connections are not affected.
    assert (await read_response(await site.send(request())))[0] == 200


async def test_9110_9_3_2_a_response_to_head_has_no_content(site: HttpSite) -> None:
    reader = await site.send(head("HEAD /refused HTTP/1.1", HOST) + request())
    (await site.next_call()).fail(405, "no heads here")
    got = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), WAIT_S)
    assert got.startswith(b"HTTP/1.1 405 ")
    assert b"Content-Length: 25\r\n" in got
    # The next response follows immediately.
    assert (await read_response(reader))[2] == b"POST "


async def test_9110_6_5_1_trailers_are_no_headers(site: HttpSite) -> None:
    _, writer = await site.connect()
    writer.write(head("POST /1 HTTP/1.1", "A: before", CHUNKED))
    writer.write(b"3\r\nabc\r\n0\r\nA: after\r\nB: as well\r\n\r\n")
    call = await site.next_call()
    assert call.body == b"abc"
    assert call.headers == {b"a": b"before", b"transfer-encoding": b"chunked"}


@pytest.mark.parametrize(
    ("beginning", "endless"),
    [
        (b"3\r\nabc\r\n0\r\n", b"A: b\r\n" * 10),
        (b"3\r\nabc\r\n0\r\n", b"x" * 60),
        (b"3\r\nabc\r\n0\r\n", b"A: b\r\nC" + b"c" * 60),
        (b"3;", b"x" * 60),
    ],
    ids=["trailers", "one trailer", "another", "extension"],
)
async def test_9112_7_1_trailers_and_extensions_have_an_end(
    site: HttpSite, beginning: bytes, endless: bytes
) -> None:
    """Their bytes are no body's: they count against the headers' limit."""
    reader, writer = await site.connect()
    writer.write(head(POST, HOST, CHUNKED) + beginning)
    response = asyncio.ensure_future(read_response(reader))
    async with asyncio.timeout(WAIT_S):
        while not response.done():
            writer.write(endless)
            await writer.drain()
            await asyncio.sleep(0)
    status, _, body = await response
    assert status == 431
    assert b"trailers or chunk extensions exceed 4096 bytes" in body


async def test_9112_7_1_chunks_by_the_thousand_are_no_trailers(site: HttpSite) -> None:
    reader, writer = await site.connect()
    writer.write(head(POST, HOST, CHUNKED))
    for _ in range(900):
        writer.write(b"00000001\r\nx\r\n")
        await writer.drain()
        await asyncio.sleep(0)
    writer.write(NO_CHUNKS)
    assert (await read_response(reader))[2] == b"POST " + b"x" * 900
