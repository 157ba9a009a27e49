"""What a request's head is read as, and what is kept of it."""

from typing import Any

import hpack
import pytest

from nereid.bounded_cache import BoundedCache
from nereid.rpc.grpc.handlers import Route
from nereid.rpc.grpc.request_headers import (
    OVERSIZED,
    RequestHeaders,
    RequestHeadersReader,
    parse_headers,
)
from nereid.rpc.grpc.status import Status
from nereid.rpc.http2.frames import Http2ConnectionError, Http2StreamError
from nereid.rpc.http2.header_decoder import HeaderDecoder
from tests.support.rpc.http2_frames import REQUEST, Fields, to

ROUTE = Route(unary=lambda call, message: None)


class Reading:
    """A reader with its peer's encoder."""

    def __init__(self, limit: int = 16_384) -> None:
        self.indexed_headers = BoundedCache[tuple[tuple[bytes, bytes] | None, ...], RequestHeaders](
            1024
        )
        self.encoder = hpack.Encoder()
        self.reader = RequestHeadersReader(
            HeaderDecoder(limit), {"/test/Echo": ROUTE}, self.indexed_headers
        )

    def read(self, fields: Fields) -> RequestHeaders:
        return self.reader.read(self.encoder.encode(fields))


def with_(*more: tuple[str, str]) -> Fields:
    return [*REQUEST, *more]


def without(name: str) -> Fields:
    return [pair for pair in REQUEST if pair[0] != name]


def test_a_plain_request() -> None:
    head = Reading().read(with_(("a", "b"), ("raw-bin", "AP8"), ("user-agent", "me")))
    assert head.path == "/test/Echo"
    assert head.route is ROUTE
    assert head.refusal is None
    assert head.encoding == "identity"
    assert head.timeout_s is None
    assert head.content_length is None
    assert head.metadata == (("a", "b"), ("raw-bin", b"\x00\xff"), ("user-agent", "me"))


def test_a_repeated_block_is_one_look_up() -> None:
    reading = Reading()
    reading.read(with_(("a", "b")))
    first = reading.read(with_(("a", "b")))
    assert reading.read(with_(("a", "b"))) is first


def test_a_moved_table_forgets_blocks() -> None:
    reading = Reading()
    reading.read(REQUEST)
    block = reading.encoder.encode(REQUEST)
    assert reading.reader.read(block).path == "/test/Echo"
    # One more entry moves every index: the same bytes now say something else.
    reading.read(with_(("pusher", "x")))
    with pytest.raises((Http2StreamError, Http2ConnectionError)):
        reading.reader.read(block)


def test_a_malformed_block_that_moves_the_table_forgets_blocks_as_well() -> None:
    reading = Reading()
    reading.read(with_(("a", "1")))
    block = reading.encoder.encode(with_(("a", "1")))
    assert reading.reader.read(block).metadata == (("a", "1"),)
    with pytest.raises(Http2StreamError):
        reading.read(with_(("connection", "x")))
    with pytest.raises((Http2StreamError, Http2ConnectionError)):
        reading.reader.read(block)


def test_fresh_fields_are_laid_over_a_shared_base() -> None:
    reading = Reading()
    reading.read(with_(("traceparent", "0")))
    for number in range(1, 5):
        head = reading.read(with_(("traceparent", str(number)), ("grpc-timeout", f"{number}S")))
        assert head.timeout_s == number
        assert head.metadata == (("traceparent", str(number)),)
        assert head.route is ROUTE
    # The first request spelt everything out; the others share one base.
    assert len(reading.indexed_headers) <= 3
    bad = reading.read(with_(("x-bin", "!")))
    assert bad.refusal is not None
    assert bad.refusal.status == Status.INTERNAL


@pytest.mark.parametrize(
    "more",
    [
        (("a", "literal"), ("a", "indexed")),
        (("a", "indexed"), ("a", "literal")),
        (("a", "literal"), ("b", "literal"), ("a", "indexed"), ("a", "literal")),
        (("a-bin", "bGl0ZXJhbA"), ("a-bin", "aW5kZXhlZA")),
        (("grpc-timeout", "1S"), ("grpc-timeout", "2S")),
        (("grpc-timeout", "2S"), ("grpc-timeout", "1S")),
    ],
)
def test_repeated_fields_keep_their_order(more: tuple[tuple[str, str], ...]) -> None:
    """However they are compressed: an overlay says what the whole block read at once does."""
    reading = Reading()
    indexed = (("a", "indexed"), ("a-bin", "aW5kZXhlZA"), ("grpc-timeout", "2S"))
    for each in indexed:
        reading.read(with_(each))
    fields = with_(*more)
    block = reading.encoder.encode(
        # The third says that a field is never indexed.
        [(*pair, pair in more and pair not in indexed) for pair in fields]
    )
    head = reading.reader.read(block)
    whole = parse_headers(tuple((name.encode(), value.encode()) for name, value in fields))
    assert (head.metadata, head.timeout_s) == (whole.metadata, whole.timeout_s)
    assert head.route is ROUTE


def test_caches_are_bounded() -> None:
    reading = Reading()
    for number in range(1200):
        block = reading.encoder.encode(
            [*REQUEST[:5], ("content-type", f"application/grpc+{number}")]
        )
        reading.reader.read(block)
        unindexed: Any = [*REQUEST, ("never", str(number), True)]
        reading.reader.read(reading.encoder.encode(unindexed))
    assert len(reading.indexed_headers) <= 1024
    assert len(reading.reader._blocks) <= 64


def test_skipping_keeps_the_table_right() -> None:
    reading = Reading()
    reading.reader.skip(reading.encoder.encode(REQUEST))
    again = reading.encoder.encode(REQUEST)
    assert reading.reader.read(again).path == "/test/Echo"
    reading.reader.skip(again)
    reading.reader.skip(reading.encoder.encode([("te", "trailers")]))
    assert reading.reader.read(again).path == "/test/Echo"
    reading.reader.check_trailers(reading.encoder.encode([("checksum", "1")]))
    with pytest.raises(Http2StreamError):
        reading.reader.check_trailers(reading.encoder.encode([(":path", "/")]))
    assert reading.read(REQUEST).path == "/test/Echo"


@pytest.mark.parametrize(
    "fields",
    [
        to("/a\nb"),
        to("/test/Echo "),
        to("\t/test/Echo"),
    ],
)
def test_malformed_paths(fields: Fields) -> None:
    with pytest.raises(Http2StreamError):
        Reading().read(fields)


@pytest.mark.parametrize("value", ["x ", " x", " ", "\tx\t", "a  b", "x\x01", "é", ""])
def test_metadata_keeps_its_spaces(value: str) -> None:
    reading = Reading()
    # Spelt out, and laid over a base.
    for name in ("a", "b"):
        assert reading.read(with_((name, value))).metadata == ((name, value),)


def test_metadata_that_is_no_utf8_is_latin1() -> None:
    head = Reading().read([*REQUEST, (b"a", b"caf\xe9")])  # type: ignore[list-item]
    assert head.metadata == (("a", "café"),)


@pytest.mark.parametrize("text", ["5S ", " 5S", "5S"])
def test_spaces_around_a_timeout_count_for_nothing(text: str) -> None:
    assert Reading().read(with_(("grpc-timeout", text))).timeout_s == 5


def test_a_malformed_field_after_a_good_base() -> None:
    reading = Reading()
    reading.read(with_(("a", "x")))
    for pair in (("connection", "x"), ("b", "y\n"), ("Up", "x"), (":path", "/x")):
        with pytest.raises(Http2StreamError):
            reading.read(with_(pair))


@pytest.mark.parametrize(
    ("fields", "http_status", "status"),
    [
        ([("content-type", "text/html"), *without("content-type")][1:], 415, Status.UNKNOWN),
        ([*without("content-type"), ("content-type", "application/grpc-web")], 415, Status.UNKNOWN),
        ([(":method", "GET"), *without(":method")], 405, Status.INTERNAL),
        (to("/test/None"), 200, Status.UNIMPLEMENTED),
        (with_(("grpc-encoding", "snappy")), 200, Status.UNIMPLEMENTED),
        (with_(("grpc-timeout", "soon")), 200, Status.INTERNAL),
        (with_(("a-bin", "%")), 200, Status.INTERNAL),
    ],
)
def test_refusals(fields: Fields, http_status: int, status: Status) -> None:
    reading = Reading()
    for _ in range(2):
        refusal = reading.read(fields).refusal
        assert refusal is not None
        assert refusal.http_status == http_status
        assert refusal.status == status


def test_an_unknown_compression_learns_the_known_ones() -> None:
    refusal = Reading().read(with_(("grpc-encoding", "snappy"))).refusal
    assert refusal is not None
    assert refusal.trailers == (("grpc-accept-encoding", "identity,deflate,gzip"),)


@pytest.mark.parametrize(
    "kind", ["application/grpc", "application/grpc+proto", "application/grpc;x"]
)
def test_content_types(kind: str) -> None:
    head = Reading().read([*without("content-type"), ("content-type", kind)])
    assert head.refusal is None


def test_more_of_a_head() -> None:
    head = Reading().read(
        with_(("grpc-encoding", "gzip"), ("content-length", "7"), ("content-length", "7"))
    )
    assert head.encoding == "gzip"
    assert head.content_length == 7


def test_a_head_too_large() -> None:
    reading = Reading(limit=300)
    assert reading.read(with_(("a", "x" * 300))) is OVERSIZED
    assert reading.read(REQUEST).path == "/test/Echo"
