"""Answers of a batch, put together from parts that are known already."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nereid.core.messages import Fault
from nereid.pb import nereid_pb2 as pb
from nereid.services.executor.batch.responses import answer, failure, prefixes

# Lengths around the places where a varint grows.
RAW = st.sampled_from([0, 1, 126, 127, 128, 129, 16382, 16383, 16384, 70000]).map(bytes)


@given(st.lists(st.tuples(RAW, st.lists(RAW, min_size=1, max_size=3)), max_size=3))
def test_prefixes_and_outputs_are_the_message(answers: list[tuple[bytes, list[bytes]]]) -> None:
    pieces = []
    for head, raws in answers:
        for prefix, raw in zip(prefixes(head, [*map(len, raws)]), raws, strict=True):
            pieces += [prefix, raw]
    executed = pb.Executed.FromString(b"".join(pieces) + pb.Executed(id=7).SerializeToString())
    assert executed.id == 7
    read = [(one.head, [payload.inline for payload in one.payloads]) for one in executed.answers]
    assert read == answers
    # Nothing but what protobuf itself would write.
    assert executed == pb.Executed(
        id=7,
        answers=[
            pb.Answer(head=head, payloads=[pb.Payload(inline=raw) for raw in raws])
            for head, raws in answers
        ],
    )


def test_answers_and_faults_join_in_order() -> None:
    joined = answer(b"h", [b"", b"ab"]) + failure(Fault(13, "no", late=True)) + answer(b"i", [])
    first, second, third = pb.Executed.FromString(joined).answers
    assert (first.head, [one.inline for one in first.payloads]) == (b"h", [b"", b"ab"])
    assert (second.error.code, second.error.message, second.error.late) == (13, "no", True)
    assert (third.head, len(third.payloads)) == (b"i", 0)
