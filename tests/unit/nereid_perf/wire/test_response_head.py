"""Heads of HTTP responses."""

import pytest

from nereid_perf.wire.response_head import PlainHeads, ResponseParser


@pytest.mark.parametrize(
    ("lines", "length"),
    [
        (("HTTP/1.1 200 OK", "Content-Length: 12"), 12),
        (("HTTP/1.1 200 OK", "content-length: 0", "X: y"), 0),
        (("HTTP/1.1 400 Bad Request", "Content-Length: 12"), -1),
        (("HTTP/1.1 200 OK", "Transfer-Encoding: chunked"), -1),
        (("HTTP/1.1 200 OK", "Content-Length: 12", "Connection: close"), -1),
        (("HTTP/1.0 200 OK", "Content-Length: 12"), -1),
        (("HTTP/2 what",), -1),
    ],
)
def test_only_plain_heads_have_a_length(lines: tuple[str, ...], length: int) -> None:
    head = ("\r\n".join(lines) + "\r\n\r\n").encode()
    heads = PlainHeads()
    assert [heads.content_length(head), heads.content_length(head)] == [length, length]


def test_heads_are_bounded() -> None:
    heads = PlainHeads()
    for number in range(1000):
        head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % number
        assert heads.content_length(head) == number
    assert len(heads._lengths) <= 64


def test_a_response_in_pieces_and_chunks() -> None:
    parser = ResponseParser()
    whole = (
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n"
        b"Inference-Header-Content-Length: 2\r\n\r\n2\r\n{}\r\n3\r\nabc\r\n0\r\n\r\n"
    )
    for at in range(len(whole)):
        assert not parser.complete
        parser.feed(whole[at : at + 1])
    assert parser.complete
    assert b"".join(parser.body) == b"{}abc"
    assert (parser.status, parser.json_bytes, parser.keeps_alive) == (200, 2, True)


def test_several_server_timings_are_one() -> None:
    parser = ResponseParser()
    parser.feed(
        b"HTTP/1.1 200 OK\r\nServer-Timing: a;dur=1\r\nContent-Length: 0\r\n"
        b"server-timing: b;dur=2\r\n\r\n"
    )
    assert parser.server_timing == "a;dur=1, b;dur=2"
