"""Bytes that are made once."""

from nereid_perf.request import Request
from nereid_perf.wire.kept_bytes import KeptBytes


def test_the_same_request_is_made_once_and_an_equal_one_again() -> None:
    made = []

    def make(request: Request) -> bytes:
        made.append(request)
        return request.message * 2

    kept = KeptBytes(make)
    request = Request(b"ab")
    assert [kept.bytes_of(request), kept.bytes_of(request)] == [b"abab", b"abab"]
    assert kept.bytes_of(Request(b"ab")) == b"abab"
    assert len(made) == 2


def test_large_ones_are_made_each_time() -> None:
    made = []
    kept = KeptBytes(lambda request: made.append(1) or bytes(1 << 17))  # type: ignore[func-returns-value]
    request = Request(b"")
    kept.bytes_of(request)
    kept.bytes_of(request)
    assert len(made) == 2


def test_they_are_bounded() -> None:
    made = []

    def make(request: Request) -> bytes:
        made.append(request)
        return b""

    kept = KeptBytes(make)
    requests = [Request(b"%d" % number) for number in range(300)]
    for request in requests:
        kept.bytes_of(request)
    kept.bytes_of(requests[-1])
    assert len(made) == 300
    kept.bytes_of(requests[0])
    assert len(made) == 301
