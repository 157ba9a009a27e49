"""Batch messages: cut out of the frame or parsed, the requests are the same."""

from __future__ import annotations

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from nereid.pb import nereid_pb2 as pb
from nereid_executor.batch.batch_reader import (
    BatchMessage,
    BatchRequest,
    parse_batch,
    read_batch,
)

_U64 = st.integers(0, 2**64 - 1)


@st.composite
def members(draw: st.DrawFn) -> pb.BatchMember:
    member = pb.BatchMember(
        head=draw(st.binary(max_size=200)),
        id=draw(_U64),
        request_id=draw(st.text(max_size=4)),
        remaining_us=draw(_U64),
        timeout_us=draw(_U64),
    )
    for data in draw(st.lists(st.none() | st.binary(max_size=200), max_size=3)):
        payload = member.payloads.add()
        if data is not None:
            payload.inline = data
    if draw(st.booleans()):
        member.trace_context = draw(st.binary(max_size=30))
    if draw(st.integers(0, 9)) == 0:
        member.payloads.add().shared_memory.offset = 5
    if draw(st.integers(0, 9)) == 0:
        member.parameters["priority"].int64_param = 1
    return member


def fields(request: BatchRequest) -> tuple[object, ...]:
    return (
        request.id,
        request.head,
        request.tensors,
        request.request_id,
        request.trace_context,
        request.remaining_us,
        request.timeout_us,
        request.parameters,
        request.is_shared,
    )


def contents(message: BatchMessage) -> tuple[object, ...]:
    others = [*message.controls], [*message.exported_slots]
    return message.id, [*map(fields, message.requests)], message.traced, others


@given(_U64, st.lists(members(), max_size=4), st.booleans())
def test_cut_out_or_parsed_a_batch_is_the_same(
    number: int, batch: list[pb.BatchMember], traced: bool
) -> None:
    frame = pb.Batch(id=number, members=batch, traced=traced).SerializeToString()
    assert contents(read_batch(frame)) == contents(parse_batch(frame))


@given(_U64, st.lists(members(), min_size=1, max_size=2), st.data())
def test_a_damaged_batch_is_read_as_the_parser_reads_it(
    number: int, batch: list[pb.BatchMember], data: st.DataObject
) -> None:
    whole = bytearray(pb.Batch(id=number, members=batch).SerializeToString())
    place = data.draw(st.integers(0, len(whole) - 1))
    damaged = bytes(whole[:place]) if data.draw(st.booleans()) else None
    if damaged is None:
        whole[place] = data.draw(st.integers(0, 255))
        damaged = bytes(whole)
    try:
        expected = contents(parse_batch(damaged))
    except DecodeError:
        with pytest.raises(DecodeError):
            read_batch(damaged)
    else:
        assert contents(read_batch(damaged)) == expected


def test_only_what_has_nothing_special_is_cut_out() -> None:
    plain = pb.BatchMember(head=b"h", id=7, request_id="r", timeout_us=5, remaining_us=4)
    plain.payloads.add(inline=b"abcd")
    cut = read_batch(pb.Batch(id=3, members=[plain, plain]).SerializeToString())
    # The parser leaves what it has parsed.
    assert not cut.members
    assert [*map(fields, cut.requests)] == [(7, b"h", [b"abcd"], "r", b"", 4, 5, None, False)] * 2
    plain.sequence_slot = 1
    parsed = read_batch(pb.Batch(id=3, members=[plain]).SerializeToString())
    assert parsed.members[0] == plain
