"""The client's connection: what a server's frames come to."""

from __future__ import annotations

import struct
from typing import Any

import hpack
import pytest

from nereid.rpc.grpc.client_connection import ClientStream, outcome_of, request_block
from nereid.rpc.grpc.status import NotProcessedError, Status
from nereid.rpc.http2.frames import Code
from nereid.rpc.http2.limits import Limits
from tests.support.rpc.connection_harness import ClientHarness
from tests.support.rpc.http2_frames import (
    ACK,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PADDED,
    PING,
    RST,
    SETTINGS,
    WINDOW,
    frame,
    message,
    settings,
    window,
)

OPEN = [(":status", "200"), ("content-type", "application/grpc")]
ENDED = END_HEADERS | END_STREAM


def test_the_opening(client: ClientHarness) -> None:
    assert dict(struct.iter_unpack(">HI", client.opening[0].payload))[2] == 0
    assert client.opening[1].kind == WINDOW


def test_a_call(client: ClientHarness) -> None:
    stream = client.start()
    stream.send(b"question")
    stream.half_close()
    stream.half_close()
    head, data, end = client.sent_frames()
    assert head.fields == {
        ":method": "POST",
        ":scheme": "http",
        ":path": "/test/Echo",
        ":authority": "host",
        "te": "trailers",
        "content-type": "application/grpc",
        "user-agent": "nereid-rpc",
        "grpc-accept-encoding": "identity,deflate,gzip",
        "a": "b",
        "grpc-timeout": "2000000u",
    }
    assert data.payload == message(b"question")
    assert (end.kind, end.flags, end.payload) == (DATA, END_STREAM, b"")
    client.feed(client.headers(OPEN))
    assert client.opens == 1
    client.feed(
        frame(DATA, 0, 1, message(b"answer")),
        client.headers([("grpc-status", "0"), ("k", "v")], ENDED),
    )
    assert client.messages == [b"answer"]
    assert client.closes == [None]
    assert client.sent_frames() == []
    assert not client.connection.streams


def test_secure_requests_say_so() -> None:
    block = request_block("/a", "h", (), secure=True)
    fields: list[Any] = [tuple(pair) for pair in hpack.Decoder().decode(block)]
    assert (":scheme", "https") in fields


def test_a_stream_used_before_its_connection(client: ClientHarness) -> None:
    stream = client.stream()
    stream.send(b"early")
    stream.pause()
    stream.resume()
    assert stream.buffered_bytes == 10
    stream.half_close()
    client.connection.start(stream)
    assert stream.buffered_bytes == 0
    assert [each.kind for each in client.sent_frames()] == [HEADERS, DATA, DATA]


def test_a_stream_cancelled_before_its_connection(client: ClientHarness) -> None:
    stream = client.stream()
    left: list[ClientStream] = []
    stream.leave_queue = left.append
    stream.cancel()
    stream.cancel()
    assert left == [stream]
    other = client.stream()
    other.cancel()
    assert client.closes == []


def test_cancelling(client: ClientHarness) -> None:
    stream = client.start()
    client.sent_frames()
    stream.cancel()
    assert client.one(RST).number == Code.CANCEL
    client.feed(client.headers(OPEN), frame(DATA, END_STREAM, 1, message(b"late")))
    assert client.messages == []
    assert client.closes == []
    assert client.http2.error is None
    assert client.slots >= 1


def test_trailers_only(client: ClientHarness) -> None:
    client.start()
    client.sent_frames()
    fields = [*OPEN, ("grpc-status", "5"), ("grpc-message", "no%20such"), ("k", "v")]
    client.feed(client.headers(fields, ENDED))
    assert client.error.status == Status.NOT_FOUND
    assert client.error.message == "no such"
    assert client.error.trailers == (("k", "v"),)
    # Our side was still open.
    assert client.one(RST).number == Code.CANCEL


def test_informational_responses_are_passed_over(client: ClientHarness) -> None:
    client.start()
    client.feed(client.headers([(":status", "103")]), client.headers(OPEN))
    assert client.opens == 1


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ([(":status", "503")], Status.UNAVAILABLE),
        ([(":status", "404"), ("content-type", "text/html")], Status.UNIMPLEMENTED),
        ([(":status", "200"), ("content-type", "text/html")], Status.UNKNOWN),
        ([(":status", "415"), ("grpc-status", "16")], Status.UNAUTHENTICATED),
        ([("content-type", "application/grpc")], Status.UNKNOWN),
        ([(":status", "x")], Status.UNKNOWN),
    ],
)
@pytest.mark.parametrize("flags", [END_HEADERS, ENDED])
def test_what_is_no_grpc_response(
    client: ClientHarness, fields: list[tuple[str, str]], status: Status, flags: int
) -> None:
    client.start()
    client.feed(client.headers(fields, flags))
    assert client.error.status == status
    assert not client.connection.streams


def test_missing_and_odd_trailers() -> None:
    client = ClientHarness()
    client.start()
    client.feed(client.headers(OPEN), frame(DATA, END_STREAM, 1, message(b"x")))
    assert client.error.status == Status.INTERNAL
    for fields, status in (
        ([(b"a", b"b")], Status.UNKNOWN),
        ([(b"grpc-status", b"99")], Status.UNKNOWN),
        ([(b"grpc-status", b"x"), (b"grpc-message", b"m")], Status.UNKNOWN),
        ([(b"grpc-message", b"m"), (b"grpc-status", b"10")], Status.ABORTED),
    ):
        assert outcome_of(fields).status == status
    assert outcome_of([(b"grpc-message", b"m"), (b"grpc-status", b"10")]).message == "m"


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (Code.CANCEL, Status.CANCELLED),
        (Code.ENHANCE_YOUR_CALM, Status.RESOURCE_EXHAUSTED),
        (Code.PROTOCOL_ERROR, Status.INTERNAL),
        (Code.REFUSED_STREAM, Status.UNAVAILABLE),
    ],
)
def test_resets(client: ClientHarness, code: Code, status: Status) -> None:
    client.start()
    client.feed(frame(RST, 0, 1, struct.pack(">I", code)))
    assert client.error.status == status
    assert isinstance(client.error, NotProcessedError) == (code == Code.REFUSED_STREAM)


def test_goaway_fails_what_was_not_processed(client: ClientHarness) -> None:
    first, second = client.start(), client.start()
    client.feed(frame(GOAWAY, 0, 0, struct.pack(">II", 1, 0) + b"moving"))
    assert isinstance(client.error, NotProcessedError)
    assert "moving" in client.error.message
    assert second.done
    assert not first.done
    assert not client.connection.usable


def test_the_connection_is_lost(client: ClientHarness) -> None:
    client.start()
    client.connection.connection_lost()
    assert client.error.status == Status.UNAVAILABLE
    assert not client.connection.usable


def test_the_servers_limit(client: ClientHarness) -> None:
    assert client.connection.has_stream_slot
    client.start()
    client.feed(settings(streams=1))
    assert not client.connection.has_stream_slot
    client.feed(settings(streams=2))
    assert client.connection.has_stream_slot


def test_bad_messages(client: ClientHarness) -> None:
    client.start()
    client.sent_frames()
    client.feed(frame(DATA, 0, 1, message(b"before HEADERS")))
    assert client.error.status == Status.INTERNAL
    assert client.one(RST).number == Code.CANCEL


def test_a_cut_off_message(client: ClientHarness) -> None:
    client.start()
    client.feed(client.headers(OPEN), frame(DATA, END_STREAM, 1, message(b"cut")[:-1]))
    assert client.error.status == Status.INTERNAL


def test_a_cut_off_message_before_an_error_is_the_error(client: ClientHarness) -> None:
    client.start()
    client.feed(client.headers(OPEN), frame(DATA, 0, 1, message(b"cut")[:-1]))
    client.feed(client.headers([("grpc-status", "8")], ENDED))
    assert client.error.status == Status.RESOURCE_EXHAUSTED


def test_an_owner_that_fails(client: ClientHarness, caplog: pytest.LogCaptureFixture) -> None:
    stream = client.start()

    def on_message(body: bytes) -> None:
        raise KeyError("mine")

    stream.on_message = on_message
    client.feed(client.headers(OPEN), frame(DATA, 0, 1, message(b"x")))
    assert client.error.status == Status.INTERNAL
    assert "mine" in caplog.text
    assert client.http2.error is None


def test_stream_errors_of_the_server(client: ClientHarness) -> None:
    client.start()
    client.feed(client.headers(OPEN), client.headers([("a", "b")]))
    assert client.error.status == Status.INTERNAL
    client.feed(client.headers(OPEN))
    assert client.http2.error is None


def test_a_head_too_large() -> None:
    client = ClientHarness(Limits(trusts_peer=True, max_header_list_bytes=200))
    client.start()
    client.feed(client.headers([*OPEN, ("a", "x" * 200)]))
    assert client.error.status == Status.INTERNAL


def test_a_head_too_large_that_moves_the_table_forgets_blocks_as_well() -> None:
    client = ClientHarness(Limits(trusts_peer=True, max_header_list_bytes=200))

    def respond(stream: int, head: list[tuple[str, str]], trailers: list[tuple[str, str]]) -> None:
        client.start()
        for fields, flags in ((head, END_HEADERS), (trailers, ENDED)):
            client.feed(frame(HEADERS, flags, stream, client.encoder.encode(fields)))

    fine, failed = [("grpc-status", "0")], [("grpc-status", "7")]
    # The second time the trailers are one index, and are remembered.
    respond(1, OPEN, fine)
    respond(3, OPEN, fine)
    client.start()
    client.feed(
        frame(
            HEADERS,
            END_HEADERS,
            5,
            client.encoder.encode([*OPEN, ("a", "x" * 200), *failed]),
        )
    )
    # The same index means another field now.
    respond(7, OPEN, failed)
    statuses = [error and error.status for error in client.closes]
    assert statuses == [None, None, Status.INTERNAL, Status.PERMISSION_DENIED]


def test_encodings_of_the_response(client: ClientHarness) -> None:
    stream = client.start()
    client.feed(client.headers([*OPEN, ("grpc-encoding", "gzip")]))
    assert stream.encoding == "gzip"


@pytest.mark.parametrize(
    ("attack", "code"),
    [
        (frame(HEADERS, END_HEADERS, 7, b"\x88"), Code.PROTOCOL_ERROR),
        (frame(HEADERS, END_HEADERS, 2, b"\x88"), Code.PROTOCOL_ERROR),
        (frame(DATA, 0, 9, b""), Code.PROTOCOL_ERROR),
        (frame(RST, 0, 2, bytes(4)), Code.PROTOCOL_ERROR),
        (settings(push=1), Code.PROTOCOL_ERROR),
    ],
)
def test_connection_errors(client: ClientHarness, attack: bytes, code: Code) -> None:
    client.start()
    client.feed(attack)
    assert client.http2.error is not None
    assert client.http2.error.code == code


def test_a_server_is_trusted_with_pings(client: ClientHarness) -> None:
    client.feed(frame(PING, 0, 0, bytes(8)) * 5000)
    assert client.http2.error is None


def test_padding_and_windows(client: ClientHarness) -> None:
    stream = client.start()
    client.feed(client.headers(OPEN))
    client.sent_frames()
    stream.pause()
    body = message(bytes(200_000))
    for at in range(0, len(body), 50_000):
        client.feed(frame(DATA, PADDED, 1, b"\x03" + body[at : at + 50_000] + bytes(3)))
    for _ in range(2):
        client.feed(frame(DATA, 0, 1, message(bytes(250_000))))
    assert [each for each in client.sent_frames() if each.kind == WINDOW] == []
    stream.resume()
    assert client.one(WINDOW).stream == 1
    assert [len(each) for each in client.messages] == [200_000, 250_000, 250_000]


def test_writable(client: ClientHarness) -> None:
    ClientStream(b"", client.messages.append, client.closes.append).notify_writable()
    stream = client.start()
    stream.send(bytes(200_000))
    client.sent_frames()
    assert stream.buffered_bytes > 100_000
    client.feed(window(0, 1 << 20), window(1, 1 << 20))
    client.sent_frames()
    # Below the mark, then nothing left.
    assert client.writable == 2
    stream.cancel()
    stream.send(b"x")
    stream.half_close()


def test_acks_of_settings(client: ClientHarness) -> None:
    client.feed(settings(frame=20_000), frame(SETTINGS, ACK))
    assert client.one(SETTINGS).flags == ACK
