"""Responses of a batch, concatenated from precomputed parts."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nereid.core.wire.messages import ErrorStatus
from nereid.core.wire.response_prefixes import response_prefixes
from nereid.pb import nereid_pb2 as pb
from nereid_executor.batch.responses import (
    encode_response,
    error_response,
)

# Lengths around the places where a varint grows.
RAW = st.sampled_from([0, 1, 126, 127, 128, 129, 16382, 16383, 16384, 70000]).map(bytes)


@given(st.lists(st.tuples(RAW, st.lists(RAW, min_size=1, max_size=3)), max_size=3))
def test_prefixes_and_outputs_are_the_message(
    wire_responses: list[tuple[bytes, list[bytes]]],
) -> None:
    pieces = []
    for head, raws in wire_responses:
        for prefix, raw in zip(response_prefixes(head, [*map(len, raws)]), raws, strict=True):
            pieces += [prefix, raw]
    executed = pb.Executed.FromString(b"".join(pieces) + pb.Executed(id=7).SerializeToString())
    assert executed.id == 7
    read = [(one.head, [payload.inline for payload in one.payloads]) for one in executed.responses]
    assert read == wire_responses
    # Nothing but what protobuf itself would write.
    assert executed == pb.Executed(
        id=7,
        responses=[
            pb.InferResponse(head=head, payloads=[pb.Payload(inline=raw) for raw in raws])
            for head, raws in wire_responses
        ],
    )


def test_responses_and_errors_join_in_order() -> None:
    joined = (
        encode_response(b"h", [b"", b"ab"])
        + error_response(ErrorStatus(13, "no", accepted=True))
        + encode_response(b"i", [])
    )
    first, second, third = pb.Executed.FromString(joined).responses
    assert (first.head, [one.inline for one in first.payloads]) == (b"h", [b"", b"ab"])
    assert (second.error.code, second.error.message, second.error.accepted) == (13, "no", True)
    assert (third.head, len(third.payloads)) == (b"i", 0)
