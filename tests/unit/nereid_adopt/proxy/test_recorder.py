from typing import Final

from nereid.comparison.process import ReportProcess
from nereid_adopt.calls.requests import NO_FACTS, RequestFacts
from nereid_adopt.calls.traffic import SequenceStep, Side
from nereid_adopt.proxy.recorder import BROKEN_SEQUENCE, CopiedCall, HttpReply, Recorder

_REPLY: Final = HttpReply(200, (b"{}",))


def facts(*, start: bool = False, end: bool = False) -> RequestFacts:
    return RequestFacts(SequenceStep("m", "1", start, end))


def submit(recorder: Recorder, found: RequestFacts) -> None:
    """Submit a call to a process that was not started, which takes none."""
    recorder.submit(CopiedCall("m", Side.OLD, "/", (), (b"",), _REPLY, 0.0, found.step), 0)


def recorder() -> Recorder:
    return Recorder(ReportProcess("none", None, max_queued_bytes=0))


def test_requests_without_a_sequence_may_always_be_copied() -> None:
    assert recorder().may_copy("m", NO_FACTS)


def test_a_sequence_with_a_gap_has_no_copies_until_it_starts_anew() -> None:
    found = recorder()
    assert found.may_copy("m", facts(start=True))
    submit(found, facts(start=True))
    assert not found.may_copy("m", facts())
    assert found.not_copied["m", BROKEN_SEQUENCE] == 1
    assert found.may_copy("m", facts(start=True))
    assert found.may_copy("m", facts())
    found.skip("m", "too large", facts().step)
    assert not found.may_copy("m", facts(end=True))
    # The end has ended the gap as well.
    assert found.may_copy("m", facts())


def test_counts_by_names_of_clients_are_bounded() -> None:
    found = recorder()
    for number in range(1100):
        found.skip(f"m{number}", "too large")
        found.note_change(f"c{number}", ok=True)
    assert found.not_copied["(other)", "too large"] == 100
    assert found.changes["(other)", True] == 100
