"""Messages cut out of a stream, however it is cut itself."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nereid.rpc.grpc.messages import PartialMessage, check_message_prefix
from nereid.rpc.grpc.status import RpcError, Status
from tests.support.rpc.http2_frames import message


@given(st.lists(st.binary(max_size=3000), max_size=4), st.lists(st.integers(1, 4000), min_size=1))
def test_messages_survive_any_cut(bodies: list[bytes], cuts: list[int]) -> None:
    stream = b"".join(message(body) for body in bodies)
    got, partial, at, turn = [], PartialMessage(1 << 20), 0, 0
    while at < len(stream):
        data = stream[at : at + cuts[turn % len(cuts)]]
        at, turn, start = at + len(data), turn + 1, 0
        while start < len(data):
            start = partial.feed(data, start, len(data))
            if partial.complete:
                got.append(partial.message())
                partial = PartialMessage(1 << 20)
    assert got == bodies


def test_heads_are_refused_before_the_body_is_there() -> None:
    with pytest.raises(RpcError) as caught:
        PartialMessage(99).feed(message(bytes(100))[:5], 0, 5)
    assert caught.value.status == Status.RESOURCE_EXHAUSTED
    with pytest.raises(RpcError) as caught:
        check_message_prefix(2, 0, 100)
    assert caught.value.status == Status.INTERNAL
    check_message_prefix(1, 100, 100)
