"""Where servers say that time went, as a worker reports it."""

from nereid_perf.request import Request
from nereid_perf.wire.client import PendingRequest
from nereid_perf.workers.rows import FAILED, OK, RowWriter
from nereid_perf.workers.timing_rows import CLIENT_AND_WIRE, TimingWriter, timings_of


def _pending(text: str) -> PendingRequest:
    pending = PendingRequest(Request(b"", workload=2), 0)
    pending.sent_ns, pending.last_ns = 1_000_000, 11_000_000
    pending.server_timing = text
    return pending


def _taken(writer: TimingWriter) -> tuple[list[tuple[int, ...]], tuple[str, ...]]:
    content, names = writer.take()
    return timings_of(content).tolist(), names


def test_what_the_server_s_parts_leave_is_client_and_wire() -> None:
    writer = TimingWriter()
    writer.add(_pending("a;dur=2, b;dur=3"))
    rows = [(11_000_000, 2, 1, 2_000_000), (11_000_000, 2, 2, 3_000_000)]
    assert _taken(writer) == (
        [*rows, (11_000_000, 2, 0, 5_000_000)],
        (CLIENT_AND_WIRE, "a", "b"),
    )
    writer.add(_pending("b;dur=30"))
    assert _taken(writer) == ([(11_000_000, 2, 2, 30_000_000), (11_000_000, 2, 0, 0)], ())


def test_a_total_stands_for_its_parts() -> None:
    writer = TimingWriter()
    writer.add(_pending("a;dur=2, total;dur=4"))
    rows, names = _taken(writer)
    assert names == (CLIENT_AND_WIRE, "a", "total")
    assert [(row[2], row[3]) for row in rows] == [(1, 2_000_000), (2, 4_000_000), (0, 6_000_000)]


def test_names_are_bounded() -> None:
    writer = TimingWriter()
    for number in range(1000):
        writer.add(_pending(f"n{number};dur=1"))
    rows, names = _taken(writer)
    assert len(names) == 32
    assert sum(row[2] == 0 for row in rows) == 1000


def test_only_successes_with_timings_have_rows() -> None:
    writer = RowWriter()
    writer.add(_pending(""), OK)
    writer.add(_pending("a;dur=1"), FAILED)
    writer.add(_pending("nothing of use"), OK)
    assert writer.timings.take()[0] == b""
