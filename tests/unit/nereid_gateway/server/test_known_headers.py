"""Requests with a known head are what the parser would have made of them."""

from __future__ import annotations

from itertools import pairwise
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nereid_gateway.server.call import HttpCall
from nereid_gateway.server.connection import HttpConnection
from nereid_gateway.server.known_headers import KnownHeaders
from nereid_gateway.server.limits import HttpLimits
from tests.support.gateway.http_site import ConnectionLog

PLAIN = b"POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\n"
LONGER = b"POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 30\r\n\r\n"
GET = b"GET /b HTTP/1.1\r\nHost: x\r\n\r\n"
CHUNKED = b"POST /c HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
REQUESTS = {
    "plain": PLAIN + b"abc",
    "other body": PLAIN + b"xyz",
    "body like a head": PLAIN + b"POS",
    "longer": LONGER + b"-" * 30,
    "get": GET,
    "chunked": CHUNKED + b"3\r\nabc\r\n0\r\n\r\n",
    "upgrade": b"POST /d HTTP/1.1\r\nConnection: upgrade\r\nUpgrade: x\r\nContent-Length: 1\r\n"
    b"\r\ny",
}


def call_of(headers: dict[bytes, bytes], *, keep_alive: bool = True) -> HttpCall:
    call = HttpCall(lambda: None)
    call.method, call.target, call.headers = b"POST", b"/a", headers
    call.keep_alive = keep_alive
    return call


Seen = list[tuple[bytes, bytes, dict[bytes, bytes], bytes]]


async def seen(pieces: list[bytes]) -> Seen:
    """The calls that a connection makes of these pieces."""
    calls: Seen = []

    def dispatch(call: HttpCall) -> None:
        calls.append((call.method, call.target, call.headers, call.body))
        call.respond(200, (b"",))

    connection = HttpConnection(dispatch, HttpLimits(max_body_bytes=1000), ConnectionLog())
    transport = Mock()
    transport.is_closing.return_value = False
    connection.connection_made(transport)
    for piece in pieces:
        connection.data_received(piece)
    return calls


@given(
    st.lists(st.sampled_from(sorted(REQUESTS)), max_size=8),
    st.lists(st.integers(0, 400), max_size=8),
)
async def test_any_split_of_any_stream_gives_the_same_calls(
    names: list[str], cuts: list[int]
) -> None:
    stream = b"".join(REQUESTS[name] for name in names)
    places = sorted({0, *(min(cut, len(stream)) for cut in cuts), len(stream)})
    pieces = [stream[a:b] for a, b in pairwise(places)]
    # Each on a connection of its own, where no head is known.
    alone = [call for name in names for call in await seen([REQUESTS[name]])]
    assert await seen(pieces) == alone


@pytest.mark.parametrize(
    "call",
    [
        call_of({}),
        call_of({b"content-length": b"3"}, keep_alive=False),
        call_of({b"content-length": b"3", b"expect": b"100-continue"}),
        call_of({b"content-length": b"3", b"transfer-encoding": b"gzip"}),
    ],
)
def test_heads_that_do_not_determine_their_request_do_not_qualify(call: HttpCall) -> None:
    assert KnownHeaders.from_call(call, PLAIN) is None


def test_cut_and_very_long_heads_do_not_qualify() -> None:
    call = call_of({b"content-length": b"3"})
    assert KnownHeaders.from_call(call, PLAIN[:-2]) is None
    assert KnownHeaders.from_call(call, b"x" * 5000 + PLAIN) is None
    call.http_1_0 = True
    assert KnownHeaders.from_call(call, PLAIN) is None


def test_a_call_with_a_known_head_has_what_was_parsed() -> None:
    known = KnownHeaders.from_call(call_of({b"content-length": b"3"}), PLAIN)
    assert known is not None
    assert (known.text, known.end) == (PLAIN, len(PLAIN) + 3)
    call = HttpCall(lambda: None, known_headers=known, body=b"abc")
    assert (call.method, call.target) == (b"POST", b"/a")
    assert (call.body, call.headers) == (b"abc", {b"content-length": b"3"})
    assert call.known_headers is known
