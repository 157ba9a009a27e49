"""Items of frames as bytes: what protobuf writes, and nothing that protobuf would not read."""

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from nereid.core.wire.codecs import RequestCodec, ResponseCodec
from nereid.core.wire.messages import Cancel, InferRequest, InferResponse, Payload
from nereid.core.wire.plain_items import PlainItems, item_end
from nereid.pb import nereid_pb2 as pb

ids = st.integers(0, 2**64 - 1)
items = st.lists(
    st.tuples(ids, st.binary(max_size=200), st.lists(st.binary(max_size=300), max_size=3)),
    max_size=6,
)


def _message(parts: list[tuple[int, bytes, list[bytes]]]) -> pb.RequestFrame:
    frame = pb.RequestFrame()
    for number, head, payloads in parts:
        request = frame.requests.add(id=number, head=head)
        for payload in payloads:
            request.payloads.add(inline=payload)
    return frame


def _read(plain: PlainItems, frame: bytes) -> tuple[int, bytes, list[Payload]] | None:
    begin, end = item_end(frame, 0)
    read = plain.read(frame, begin, end)
    return None if read is None or read[3] < end else read[:3]


@given(items)
def test_frames_are_what_protobuf_writes(parts: list[tuple[int, bytes, list[bytes]]]) -> None:
    requests = [InferRequest(number, head, [*payloads]) for number, head, payloads in parts]
    frame = RequestCodec().encode([*requests])
    assert frame == _message(parts).SerializeToString()
    responses = [InferResponse(number, head, [*payloads]) for number, head, payloads in parts]
    assert ResponseCodec().encode([*responses]) == frame


@given(items)
def test_one_reader_reads_items_that_differ(parts: list[tuple[int, bytes, list[bytes]]]) -> None:
    codec = RequestCodec()
    for part in parts:
        (back,) = codec.decode(_message([part]).SerializeToString())
        assert isinstance(back, InferRequest)
        assert (back.id, back.head, back.payloads) == part


def test_requests_keep_their_order() -> None:
    mixed = [InferRequest(number, b"head", [b"x"], priority=number % 2) for number in range(1, 7)]
    back = RequestCodec().decode(RequestCodec().encode([mixed[0], Cancel(9), *mixed[1:]]))
    numbers = [item.id for item in back if isinstance(item, InferRequest)]
    assert numbers == [1, 2, 3, 4, 5, 6]
    assert back[-1] == Cancel(9)


@given(st.data(), items.filter(bool))
def test_a_frame_that_is_cut_off_is_refused(
    data: st.DataObject, parts: list[tuple[int, bytes, list[bytes]]]
) -> None:
    whole = _message(parts).SerializeToString()
    ends = [len(_message(parts[:count]).SerializeToString()) for count in range(len(parts))]
    cut = whole[: data.draw(st.integers(0, len(whole) - 1).filter(lambda end: end not in ends))]
    with pytest.raises(DecodeError):
        RequestCodec().decode(cut)


def test_nothing_is_learned_from_a_head_that_passes_its_item() -> None:
    plain = PlainItems()
    # Its head says 9 bytes, and there are 2.
    assert _read(plain, b"\x0a\x06\x08\x01\x12\x09ab") is None
    good = _message([(1, b"abcdefghi", [b"x"])]).SerializeToString()
    assert _read(plain, good) == (1, b"abcdefghi", [b"x"])


@pytest.mark.parametrize(
    "item",
    [
        b"",
        b"\x08\x01",
        # The head before the id, and twice.
        b"\x12\x01h\x08\x01",
        b"\x08\x01\x12\x01h\x12\x01h",
        # A payload in shared memory, one of two places, and one that passes the item.
        b"\x08\x01\x12\x01h\x1a\x02\x12\x00",
        b"\x08\x01\x12\x01h\x1a\x06\x0a\x01x\x0a\x01y",
        b"\x08\x01\x12\x01h\x1a\x7f\x0a\x7dx",
        # A client's id.
        b'\x08\x01\x12\x01h"\x01i',
    ],
)
def test_what_is_not_plain_is_left_to_protobuf(item: bytes) -> None:
    assert _read(PlainItems(), bytes((0x0A, len(item))) + item) is None


def test_an_id_that_is_no_text_is_refused_as_by_protobuf() -> None:
    frame = pb.RequestFrame()
    frame.requests.add(id=1, head=b"h", request_id="ab").payloads.add(inline=b"x")
    damaged = frame.SerializeToString().replace(b"ab", b"\xff\xff")
    with pytest.raises(DecodeError):
        RequestCodec().decode(damaged)
