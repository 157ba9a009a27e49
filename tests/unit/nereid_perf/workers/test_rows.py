"""What a worker reports of each request."""

from nereid_perf.request import Request
from nereid_perf.wire.client import PendingRequest
from nereid_perf.workers.rows import CANCELLED, FAILED, OK, RowWriter, gaps_of, rows_of


def _pending(intended: int, sent: int, *responses: int) -> PendingRequest:
    pending = PendingRequest(Request(b"", workload=2), intended)
    pending.sent_ns = sent
    for each in responses:
        pending.on_response(each)
    return pending


def test_a_row_has_all_times_and_is_taken_once() -> None:
    writer = RowWriter()
    writer.add(_pending(10, 20, 30, 45), OK)
    rows, gaps, texts = writer.take()
    assert rows_of(rows).tolist() == [(10, 20, 30, 45, 2, 2, OK, 0, 0)]
    assert gaps_of(gaps).tolist() == [(45, 2, 15)]
    assert texts == []
    assert writer.take() == (b"", b"", [])


def test_a_closed_loop_intends_what_it_does() -> None:
    writer = RowWriter()
    writer.add(_pending(0, 20, 30), CANCELLED)
    assert rows_of(writer.take()[0])["intended"].tolist() == [20]


def test_gaps_have_the_times_at_which_they_ended() -> None:
    writer = RowWriter()
    writer.add(_pending(1, 1, 10, 12, 17), OK)
    assert gaps_of(writer.take()[1]).tolist() == [(17, 2, 5), (12, 2, 2)]


def test_a_failure_has_the_number_of_its_text() -> None:
    writer = RowWriter()
    assert [writer.outcome_of(text) for text in ("a", "b", "a")] == [FAILED, FAILED + 1, FAILED]
    assert writer.take()[2] == ["a", "b"]
    assert writer.outcome_of("b") == FAILED + 1
    assert writer.take()[2] == []


def test_texts_are_bounded() -> None:
    writer = RowWriter()
    outcomes = {writer.outcome_of(f"failure {number}") for number in range(1000)}
    texts = writer.take()[2]
    assert len(outcomes) == len(texts) == 101
    assert texts[-1] == "other errors"
