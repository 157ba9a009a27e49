"""How an Executed message ends: as protobuf has it, and read without it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nereid.core.wire.executed import encode_executed, read_executed_times
from nereid.pb import nereid_pb2 as pb

_NUMBERS = st.integers(0, 2**64 - 1)


@given(_NUMBERS, _NUMBERS, _NUMBERS, _NUMBERS)
def test_what_is_written_is_the_message(number: int, first: int, second: int, third: int) -> None:
    message = pb.Executed.FromString(encode_executed(number, first, second, third))
    assert message.id == number
    assert message.compute_input_ns == first
    assert message.compute_infer_ns == second
    assert message.compute_output_ns == third
    assert not message.responses


@given(st.integers(1, 2**64 - 1), _NUMBERS, _NUMBERS, _NUMBERS, st.binary(max_size=20))
def test_what_is_written_is_read_from_where_the_responses_end(
    number: int, first: int, second: int, third: int, before: bytes
) -> None:
    written = before + encode_executed(number, first, second, third)
    times = read_executed_times(written, len(before))
    assert times is not None
    read = (times.id, times.compute_input_ns, times.compute_infer_ns, times.compute_output_ns)
    assert read == (number, first, second, third)
    assert not times.partial
    assert not times.states


@given(st.integers(0, 40), st.binary(min_size=1, max_size=4))
def test_anything_else_is_left_to_the_parser(length: int, more: bytes) -> None:
    whole = encode_executed(300, 1, 1 << 40, 2)
    assert read_executed_times(whole + more, 0) is None
    if length < len(whole):
        assert read_executed_times(whole[:length], 0) is None
