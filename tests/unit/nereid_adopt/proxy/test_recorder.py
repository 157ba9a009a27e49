import pickle
from typing import Final

import pytest

from nereid.comparison.process import ReportProcess
from nereid_adopt.calls.requests import NO_FACTS, RequestFacts
from nereid_adopt.calls.traffic import SequenceStep, Side
from nereid_adopt.proxy.recorder import (
    BROKEN_SEQUENCE,
    CopiedCall,
    GrpcReply,
    HttpReply,
    Recorder,
    pieces_of,
)

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


def test_a_sequence_is_broken_until_its_end() -> None:
    found = recorder()
    found.break_sequence(None)
    for end in (False, True):
        part = SequenceStep("m", "1", start=False, end=end)
        found.break_sequence(part)
        assert found.is_broken(part) is not end


def test_counts_by_names_of_clients_are_bounded() -> None:
    found = recorder()
    for number in range(1100):
        found.skip(f"m{number}", "too large")
        found.note_change(f"c{number}", ok=True)
    assert found.not_copied["(other)", "too large"] == 100
    assert found.changes["(other)", True] == 100


@pytest.mark.parametrize(
    "reply",
    [
        HttpReply(200, (b"{}", b"more"), 2, "gzip"),
        HttpReply(400, ()),
        GrpcReply((b"message",)),
        GrpcReply((b"",)),
        GrpcReply(None),
        GrpcReply(None, "5", "none"),
    ],
)
def test_a_call_is_the_same_at_the_process_of_copies(reply: HttpReply | GrpcReply) -> None:
    step = SequenceStep("m", "1", start=True, end=False)
    headers = ((b"a", b"b"),)
    for request in ((b"x",), (), (b"x", b"y")):
        sent = CopiedCall(
            "m", Side.NEW, "/p", headers, request, reply, 0.5, step, 3, "br", {"i": b"1"}
        )
        fields = pickle.loads(pickle.dumps(sent.fields()))
        found = CopiedCall.from_fields(fields)
        assert found.fields() == sent.fields()
        assert (found.request, found.inputs, found.outputs) == (request, {"i": b"1"}, {})
        assert type(found.reply) is type(reply)
        if isinstance(reply, HttpReply) and isinstance(found.reply, HttpReply):
            assert found.reply.body == reply.body
        elif isinstance(reply, GrpcReply) and isinstance(found.reply, GrpcReply):
            assert found.reply.message == reply.message


def test_large_pieces_are_pickled_without_a_copy() -> None:
    large = bytearray(1 << 14)
    small, last = pieces_of([b"small", memoryview(large)])
    (alone,) = pieces_of([memoryview(large)])
    large[0] = 1
    assert small == b"small"
    for piece in (last, alone):
        assert isinstance(piece, pickle.PickleBuffer)
        assert bytes(piece) == large
