"""Requests whose head is known, beside those that are parsed, however they are cut into pieces."""

import asyncio
from typing import Any

import httptools
import pytest

from nereid.bounded_cache import BoundedCache
from nereid_adopt.proxy.held_bytes import NO_SPACE, HeldBytes
from nereid_adopt.proxy.http_requests import (
    HeadTooLargeError,
    HttpRequest,
    RequestHead,
    RequestReader,
)

_HEAD = b"POST /v2/models/m/infer HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n%s\r\n"
_LARGE = b"large" * 4000
# Of all connections of a test.
_HEADS: BoundedCache[bytes, RequestHead] = BoundedCache(64)


def post(body: bytes, more: bytes = b"") -> bytes:
    return _HEAD % (len(body), more) + body


_REQUESTS = (
    post(b"body"),
    post(b""),
    post(b"{}ab", b"Inference-Header-Content-Length: 2\r\n"),
    post(_LARGE),
    b"GET /v2 HTTP/1.1\r\nHost: x\r\n\r\n",
    # These are never known.
    post(b"body", b"Connection: close\r\n"),
    post(b"body", b"Expect: 100-continue\r\n"),
    post(b"body").replace(b"HTTP/1.1", b"HTTP/1.0"),
    post(b"body").replace(b"Host: x", b"Host:  x"),
    post(b"body").replace(b"Host: x", b"A: %s" % (b"a" * 5000)),
    b"\r\n" + post(b"body"),
    b"POST /v2 HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
)


def ignore(_: HttpRequest) -> None:
    """Take a request of no interest."""


def values(request: HttpRequest) -> tuple[Any, ...]:
    head = request.head
    # Chunks are sent as they arrive.
    sent = b"" if head.chunked else b"".join(request.parts())
    return (
        head.method, head.target, head.path, head.headers, head.keep_alive, head.chunked,
        head.content_length, head.json_bytes, head.encoding, head.call, head.encoded,
        request.body, request.body_bytes, request.json_text[: head.json_bytes], sent,
    )  # fmt: skip


@pytest.mark.parametrize("data", _REQUESTS)
def test_repeated_requests_are_what_the_parser_says(data: bytes) -> None:
    parsed: list[HttpRequest] = []
    RequestReader(1 << 20, HeldBytes(1 << 30), BoundedCache(2), parsed.append).feed(data)
    (expected,) = map(values, parsed)
    last = b"close" in data or b"1.0" in data
    for size in (len(data), 2 * len(data), len(data) + 1, len(data) - 1, 7):
        found: list[HttpRequest] = []
        reader = RequestReader(1 << 20, HeldBytes(1 << 30), _HEADS, found.append)
        stream = data if last else data * 5
        for at in range(0, len(stream), size):
            reader.feed(stream[at : at + size])
        assert [values(each) for each in found] == [expected] * (1 if last else 5)


def test_a_known_head_is_passed_on_with_its_body_as_it_arrived() -> None:
    found: list[HttpRequest] = []
    reader = RequestReader(1 << 20, HeldBytes(1 << 30), BoundedCache(2), found.append)
    data = post(_LARGE)
    reader.feed(data)
    reader.feed(data)
    (part,) = found[1].parts()
    assert part is data
    # Not sliced, because that would copy it.
    assert isinstance(found[1].pieces[0], memoryview)


def test_connections_share_equal_heads() -> None:
    found: list[HttpRequest] = []
    heads: BoundedCache[bytes, RequestHead] = BoundedCache(8)
    for more in (b"", b"", b"X-Other: 1\r\n", b"Expect: 100-continue\r\n"):
        reader = RequestReader(1 << 20, HeldBytes(1 << 30), heads, found.append)
        for _ in range(2):
            reader.feed(post(b"body", more))
    shared, other, expecting = found[1].head, found[5].head, found[7].head
    assert found[3].head is shared
    # The proxy itself replies to the expectation, so both are passed on as the same bytes.
    assert expecting.encoded == shared.encoded != other.encoded
    assert expecting is not shared
    assert [value for name, value in expecting.headers if name == b"Expect"] == [b"100-continue"]


def test_a_change_of_the_head_is_parsed() -> None:
    found: list[HttpRequest] = []
    reader = RequestReader(1 << 20, HeldBytes(1 << 30), BoundedCache(2), found.append)
    for body in (b"1", b"22", b"22", b"1"):
        reader.feed(post(body))
    assert [each.body for each in found] == [b"1", b"22", b"22", b"1"]


async def test_a_large_body_arrives_in_a_queue() -> None:
    found: list[HttpRequest] = []
    reader = RequestReader(10, HeldBytes(1 << 30), BoundedCache(2), found.append)
    data = post(_LARGE)
    for piece in (data[:100], data[100:]):
        reader.feed(piece)
    (request,) = found
    assert isinstance(request.arriving, asyncio.Queue)
    sent = request.parts()
    while (arrived := request.arriving.get_nowait()) is not None:
        sent.append(request.encode_piece(arrived))
    assert b"".join(sent) == data
    assert request.end() == b""


async def test_a_known_head_finds_no_space_for_its_body() -> None:
    held = HeldBytes(len(_LARGE))
    found: list[HttpRequest] = []
    reader = RequestReader(1 << 20, held, BoundedCache(2), found.append)
    data = post(_LARGE)
    for _ in range(2):
        reader.feed(data)
    kept, passed_on = found
    assert (kept.body, kept.why_not_kept, held.size_bytes) == (_LARGE, "", len(_LARGE))
    assert passed_on.why_not_kept == NO_SPACE
    assert b"".join(passed_on.parts()) == data
    found.clear()
    del kept
    assert held.size_bytes == 0
    reader.feed(data)
    assert found[0].body == _LARGE
    assert found[0].arriving is None


def test_a_malformed_request_is_kept_if_it_came_alone() -> None:
    for before in (b"", post(b"body")):
        reader = RequestReader(1 << 20, HeldBytes(1 << 30), BoundedCache(2), ignore)
        with pytest.raises(httptools.HttpParserError):
            reader.feed(before + b"no HTTP\r\n")
        assert reader.malformed == (b"" if before else b"no HTTP\r\n")


def test_a_head_that_is_too_large_is_refused() -> None:
    reader = RequestReader(1 << 20, HeldBytes(1 << 30), BoundedCache(2), ignore)
    reader.feed(b"GET / HTTP/1.1\r\nA: %s" % (b"a" * (1 << 17)))
    with pytest.raises(HeadTooLargeError):
        reader.feed(b"a" * (1 << 17))
