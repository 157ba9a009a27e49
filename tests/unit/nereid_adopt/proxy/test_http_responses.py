"""Responses read by their known heads, beside the parser, however they are cut into pieces."""

from collections.abc import Iterator

import pytest

from nereid_adopt.proxy.held_bytes import NO_SPACE, HeldBytes, Holder
from nereid_adopt.proxy.http_responses import TOO_LARGE, ResponseHeads, ResponseReader
from nereid_perf.wire.response_head import ResponseParser

_BODY = b"0123456789" * 2000
_PLAIN = (
    b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\nInference-Header-Content-Length: 2\r\n\r\n{}ab",
    b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
    b"HTTP/1.1 400 Bad\r\ncontent-length: 3\r\nContent-Encoding: GZIP\r\n\r\nbad",
    b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 1\r\n\r\nx",
    b"HTTP/1.0 200 OK\r\nContent-Length: 1\r\n\r\nx",
    b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(_BODY), _BODY),
)
_PARSED = (
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
    b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx",
    b"HTTP/1.1 204 No Content\r\n\r\n",
    b"HTTP/1.1 304 Not Modified\r\nContent-Length: 9\r\n\r\n",
    # Too long to be remembered.
    b"HTTP/1.1 200 OK\r\nA: %s\r\nContent-Length: 1\r\n\r\nx" % bytes(b"a" * 5000),
)


def read(reader: ResponseReader, pieces: Iterator[bytes]) -> ResponseReader:
    for piece in pieces:
        assert not reader.complete
        reader.feed(piece)
    return reader


def cut(data: bytes, size: int) -> Iterator[bytes]:
    return (data[at : at + size] for at in range(0, len(data), size))


@pytest.mark.parametrize("response", [*_PLAIN, *_PARSED])
def test_a_response_is_what_the_parser_says(response: bytes) -> None:
    parser = ResponseParser()
    parser.feed(response)
    heads = ResponseHeads()
    # The second time, the head is known.
    for size in (len(response), len(response), 1, 7, 61, 4096):
        found = read(ResponseReader(heads), cut(response, size))
        assert found.complete
        assert found.is_http
        assert found.status == parser.status
        assert found.keeps_alive == parser.keeps_alive
        assert found.json_bytes == parser.json_bytes
        assert found.encoding == parser.content_encoding
        assert found.body is not None
        assert b"".join(found.body) == b"".join(parser.body)
        assert found.body_bytes == len(b"".join(parser.body))


def test_a_response_to_head_ends_with_its_head() -> None:
    heads = ResponseHeads()
    for length in (b"Content-Length: 5\r\n", b""):
        reader = ResponseReader(heads, is_head=True)
        reader.feed(b"HTTP/1.1 200 OK\r\n%s\r\n" % length)
        assert reader.complete
        assert reader.body == []


def test_a_body_without_a_length_ends_with_its_connection() -> None:
    reader = ResponseReader(ResponseHeads())
    reader.feed(b"HTTP/1.1 200 OK\r\n\r\nabc")
    assert not reader.complete
    assert reader.ends_with_connection


def test_a_body_that_is_too_large_is_not_kept() -> None:
    for response in (_PLAIN[-1], _PARSED[0]):
        reader = read(ResponseReader(ResponseHeads(), max_body_bytes=2), cut(response, 10))
        assert reader.complete
        assert (reader.body, reader.why_not_kept) == (None, TOO_LARGE)


def test_a_body_without_space_is_not_kept() -> None:
    held = HeldBytes(19_000)
    for response, body in ((_PLAIN[-1], None), (_PLAIN[0], [b"{}ab"])):
        reader = ResponseReader(ResponseHeads(), held=Holder(held))
        read(reader, cut(response, 4096))
        assert reader.complete
        assert reader.body == body
        assert reader.why_not_kept == ("" if body else NO_SPACE)
        assert held.size_bytes == (4 if body else 0)
    del reader
    assert held.size_bytes == 0


@pytest.mark.parametrize("response", [b"nothing of HTTP", b"HTTP/1.1 200 OK\r\nbad\r\n\r\n"])
def test_other_bytes_are_no_response(response: bytes) -> None:
    reader = ResponseReader(ResponseHeads())
    reader.feed(response)
    assert not reader.is_http
    reader.feed(response)
    assert not reader.complete


def test_bytes_behind_a_response_end_its_connection() -> None:
    reader = ResponseReader(ResponseHeads())
    reader.feed(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nxy")
    assert reader.complete
    assert not reader.keeps_alive
