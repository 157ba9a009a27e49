"""Responses that are cut out of Executed messages are what the parser would have read."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nereid.core.errors import Internal, ProtocolError
from nereid.core.wire.codecs import read_response, write_error, write_payloads
from nereid.core.wire.messages import ErrorStatus, InferResponse
from nereid.pb import nereid_pb2 as pb
from nereid.shm.reference import SharedMemory
from nereid_scheduler.core.instances.executed_frame import RepeatedResponses
from nereid_scheduler.core.instances.remote_instance import RemoteInstance

HEADS = (b"", b"head", b"another head", b"x" * 9000)


def executed(
    number: int, *responses: tuple[bytes, list[bytes]], errors: int = 0, partial: bool = False
) -> bytes:
    message = pb.Executed(id=number, compute_infer_ns=number, partial=partial)
    for head, payloads in responses:
        write_payloads(payloads, message.responses.add(head=head).payloads)
    for _ in range(errors):
        write_error(ErrorStatus(Internal.code, "no"), message.responses.add().error)
    # As executors write them: what differs from batch to batch comes last.
    body = pb.Executed(responses=message.responses).SerializeToString()
    del message.responses[:]
    return body + message.SerializeToString()


def seen(responses: list[InferResponse]) -> list[tuple[object, ...]]:
    return [
        (each.id, each.head, each.payloads, each.error, each.segment_name, each.more)
        for each in responses
    ]


response_texts = st.tuples(
    st.sampled_from(HEADS),
    st.lists(st.sampled_from([b"", b"a", b"b", b"cc", b"x" * 300]), max_size=3),
)


@given(st.lists(st.tuples(st.lists(response_texts, max_size=4), st.integers(0, 1)), max_size=5))
def test_every_sequence_of_messages_is_read_as_by_the_parser(
    batches: list[tuple[list[tuple[bytes, list[bytes]]], int]],
) -> None:
    instance = RemoteInstance(1, "i", "executor")
    for number, (responses, errors) in enumerate(batches, 1):
        message = executed(number, *responses, errors=errors)
        parsed = pb.Executed.FromString(message)
        outcome, found = instance.read_responses(message)
        assert seen(found) == seen(list(map(read_response, parsed.responses)))
        assert (outcome.id, outcome.compute_infer_ns) == (number, number)


@pytest.mark.parametrize("payloads", [[b"abc"], [b"abc", b"de", b"f"]])
def test_what_repeats_is_not_parsed(payloads: list[bytes]) -> None:
    known = RepeatedResponses()
    message = executed(1, (b"head", payloads), (b"head", [each.upper() for each in payloads]))
    assert known.read(message) == ([], 0)
    known.learn(message, 0, InferResponse(0, b"head", [*payloads]))
    responses, position = known.read(message)
    assert [each.payloads for each in responses] == [
        payloads,
        [each.upper() for each in payloads],
    ]
    assert pb.Executed.FromString(message[position:]) == pb.Executed(id=1, compute_infer_ns=1)


@pytest.mark.parametrize("payloads", [[b"abc"], [b"abc", b"de"]])
def test_a_cut_message_is_malformed(payloads: list[bytes]) -> None:
    instance = RemoteInstance(1, "i", "executor")
    message = executed(1, (b"head", payloads), (b"head", payloads))
    instance.read_responses(message)
    _, position = instance.repeated_responses.read(message)
    ends = {0, position // 2, position}
    for end in range(position):
        if end in ends:
            continue
        with pytest.raises(ProtocolError):
            instance.read_responses(message[:end])


def test_of_a_partial_message_nothing_is_left_out() -> None:
    instance = RemoteInstance(1, "i", "executor")
    plain = executed(1, (b"head", [b"abc"]))
    instance.read_responses(plain)
    partial = executed(2, (b"head", [b"abc"]), (b"head", [b"xyz"]), partial=True)
    outcome, responses = instance.read_responses(partial)
    assert responses == []
    assert outcome == pb.Executed.FromString(partial)
    # The first of its kind as well.
    other = RemoteInstance(1, "i", "executor")
    assert other.read_responses(partial) == (outcome, [])


def test_references_and_more_fields_are_left_to_the_parser() -> None:
    known = RepeatedResponses()
    reference = SharedMemory("s", 0, 3)
    known.learn(b"", 0, InferResponse(0, b"head", [reference]))
    message = pb.Executed()
    response = message.responses.add(head=b"head", more=True)
    write_payloads([b"abc"], response.payloads)
    whole = message.SerializeToString()
    known.learn(whole, 0, InferResponse(0, b"head", [b"abc"]))
    second = executed(1, (b"head", [b"abc", b"de"]))
    known.learn(second[:-8], 0, InferResponse(0, b"head", [b"abc", b"xyz"]))
    assert known.read(whole) == known.read(second) == ([], 0)


def test_responses_of_the_same_length_may_be_divided_otherwise() -> None:
    known = RepeatedResponses()
    usual, other = [b"abc", b"de", b"f"], [b"abc", b"d", b"ef"]
    message = executed(1, (b"head", usual), (b"head", other))
    known.learn(message, 0, InferResponse(0, b"head", [*usual]))
    responses, position = known.read(message)
    assert [each.payloads for each in responses] == [usual]
    parsed = pb.Executed.FromString(message[position:])
    assert [[each.inline for each in one.payloads] for one in parsed.responses] == [other]
