"""Requests and responses as frames."""

import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nereid.core.wire.codecs import RequestCodec, ResponseCodec, read_parameters
from nereid.core.wire.messages import (
    CachedModels,
    Cancel,
    ErrorStatus,
    FlowControl,
    FromScheduler,
    InferRequest,
    InferResponse,
    LastCounts,
    LogRules,
    ModelsChanged,
    ModelShadows,
    MovedResponse,
    Ownership,
    Parameter,
    Payload,
    Release,
    RequestTimings,
    SequencePlace,
    ToScheduler,
    TracedModel,
    TracedTensor,
    TraceRule,
    TraceRules,
    TrafficKeys,
    moved_response,
)
from nereid.pb import kserve_pb2
from nereid.pb import nereid_pb2 as pb
from nereid.shm.reference import SharedMemory
from tests.support.forms import attributes

ids = st.integers(0, 2**64 - 1)
payloads = st.lists(
    st.one_of(st.binary(max_size=30), st.builds(SharedMemory, st.text(max_size=5), ids, ids)),
    max_size=4,
)
errors = st.builds(
    ErrorStatus,
    st.integers(0, 16),
    st.text(max_size=20),
    st.booleans(),
    retry_after_ms=st.integers(0, (1 << 32) - 1),
)
values = st.one_of(
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
    st.floats(allow_nan=False),
    st.text(max_size=9),
)
requests = st.builds(
    InferRequest,
    id=ids,
    head=st.binary(max_size=30),
    payloads=payloads,
    request_id=st.text(max_size=10),
    parameters=st.one_of(
        st.none(), st.dictionaries(st.text(max_size=5), values, min_size=1, max_size=3)
    ),
    priority=ids,
    timeout_us=ids,
    deadline=st.one_of(st.none(), st.floats(1000, 2000)),
    trace_context=st.binary(max_size=26),
    error_status=st.one_of(st.none(), errors),
    accepts_many=st.booleans(),
    wants_timings=st.booleans(),
    text_digest=st.binary(max_size=16),
    caller_key=st.binary(max_size=16),
    sequence_owner=st.text(max_size=10),
    is_shadow=st.booleans(),
    callable_models=st.binary(max_size=16),
    confined_caller=ids,
    wants_sequence_place=st.booleans(),
    copied_sequence=ids,
)
responses = st.one_of(
    st.builds(
        InferResponse,
        id=ids,
        head=st.binary(max_size=30),
        payloads=st.lists(st.binary(max_size=30), max_size=4),
        more=st.booleans(),
    ),
    st.builds(InferResponse, id=ids, head=st.binary(max_size=30), error=errors, more=st.booleans()),
)


def test_of_several_flow_controls_in_a_frame_the_last_one_counts() -> None:
    codec = RequestCodec()
    items: list[ToScheduler] = [
        FlowControl(1, paused=True),
        FlowControl(2, paused=True),
        Cancel(3),
        FlowControl(1, paused=False),
        FlowControl(4, paused=False),
        FlowControl(4, paused=True),
    ]
    assert codec.decode(codec.encode(items)) == [
        Cancel(3),
        FlowControl(2, paused=True),
        FlowControl(4, paused=True),
        FlowControl(1, paused=False),
    ]


@given(st.lists(requests, max_size=3), st.lists(st.builds(Cancel, ids), max_size=3))
def test_requests_survive_the_wire(items: list[InferRequest], cancels: list[Cancel]) -> None:
    codec = RequestCodec(clock=lambda: 500.0)
    back = codec.decode(codec.encode([*cancels, *items]))
    assert back[len(items) :] == cancels
    for before, after in zip(items, back, strict=False):
        assert isinstance(after, InferRequest)
        was, is_ = attributes(before), attributes(after)
        deadline, seen = was.pop("deadline"), is_.pop("deadline")
        assert was == is_
        assert (deadline is None) == (seen is None)
        assert deadline is None or abs(deadline - seen) < 1e-5


def test_a_deadline_in_the_past_is_still_a_deadline() -> None:
    codec = RequestCodec(clock=lambda: 10.0)
    (back,) = codec.decode(codec.encode([InferRequest(1, b"", [], deadline=3.0)]))
    assert isinstance(back, InferRequest)
    assert back.deadline is not None
    assert back.deadline <= 10.00001


@given(st.lists(responses, max_size=4))
def test_responses_survive_the_wire(items: list[InferResponse]) -> None:
    codec = ResponseCodec()
    back = codec.decode(codec.encode(list[FromScheduler](items)))
    assert [attributes(item) for item in back if isinstance(item, InferResponse)] == [
        attributes(item) for item in items
    ]


def test_a_response_in_shared_memory_names_its_segment() -> None:
    codec = ResponseCodec()
    payloads: list[Payload] = [SharedMemory("1.2.3", 0, 5), SharedMemory("1.2.3", 64, 7)]
    (back,) = codec.decode(codec.encode([InferResponse(1, b"head", payloads)]))
    assert isinstance(back, InferResponse)
    assert (back.payloads, back.segment_name) == (payloads, "1.2.3")


def test_inputs_that_may_still_be_read_are_named_with_their_response() -> None:
    codec = ResponseCodec()
    items = [InferResponse(7, b"head"), InferResponse(8, b"head"), moved_response(9)]
    items[1].inputs_in_use = items[2].inputs_in_use = True
    back = codec.decode(codec.encode([*items, Ownership("", 0, ())]))
    in_use = [each.inputs_in_use for each in back if isinstance(each, InferResponse)]
    assert in_use == [False, True, True]


def test_timings_come_with_the_last_response_to_their_request() -> None:
    codec = ResponseCodec()
    timings = RequestTimings((("queue", 5), ("inference", 2**40)), 8, "a_0", 2, cached=True)
    items = [InferResponse(1, more=True), InferResponse(1, b"head"), InferResponse(2, b"head")]
    items[1].timings = timings
    back = codec.decode(codec.encode(list[FromScheduler](items)))
    assert [each.timings for each in back if isinstance(each, InferResponse)] == [
        None,
        timings,
        None,
    ]


def test_places_come_with_the_last_response_to_their_request() -> None:
    codec = ResponseCodec()
    place = SequencePlace(2**60, 3)
    items = [InferResponse(1, more=True), InferResponse(1, b"head"), InferResponse(2, b"head")]
    items[1].sequence_place = place
    back = codec.decode(codec.encode(list[FromScheduler](items)))
    places = [each.sequence_place for each in back if isinstance(each, InferResponse)]
    assert places == [None, place, None]


def test_other_payloads_leave_the_rest_of_a_response() -> None:
    trace = (TracedModel(b"context", b"", "m", 1, "", ()),)
    payloads: list[Payload] = [SharedMemory("1.2.3", 0, 5)]
    response = InferResponse(1, b"head", payloads, segment_name="1.2.3", trace=trace)
    response.timings, response.inputs_in_use = RequestTimings(attempt=1), True
    response.sequence_place = SequencePlace(5, 1)
    inline = response.with_payloads([b"bytes"])
    assert (inline.id, inline.head, inline.payloads, inline.segment_name) == (
        *(1, b"head"),
        *([b"bytes"], ""),
    )
    assert (inline.trace, inline.timings, inline.inputs_in_use) == (
        *(trace, RequestTimings(attempt=1)),
        True,
    )
    assert inline.sequence_place == SequencePlace(5, 1)


def test_releases_follow_requests() -> None:
    codec = RequestCodec()
    release = Release(("1.2.3", "1.4.5"))
    back = codec.decode(codec.encode([release, InferRequest(1, b"", []), Cancel(2)]))
    assert back[1:] == [Cancel(2), release]
    assert codec.size_bytes(release) == 0


def test_every_kind_of_parameter_survives_the_wire() -> None:
    parameters: dict[str, Parameter] = {"b": True, "i": -1, "u": 2**64 - 1, "d": 1.5, "s": "x"}
    codec = RequestCodec()
    (back,) = codec.decode(codec.encode([InferRequest(1, b"", [], parameters=parameters)]))
    assert isinstance(back, InferRequest)
    assert back.parameters == parameters


def test_a_parameter_without_a_value_is_left_out() -> None:
    assert read_parameters({"empty": kserve_pb2.InferParameter()}) == {}


def test_a_request_that_cannot_be_encoded_is_sent_as_an_error() -> None:
    codec = RequestCodec()
    good, bad = InferRequest(1, b"good", [b"x"]), InferRequest(2, b"bad", [b"x"], priority=1 << 64)
    worse = InferRequest(3, b"head" * (1 << 20), [], timeout_us=-1)
    back = codec.decode(codec.encode([good, bad, Cancel(9), worse]))
    requests = [item for item in back if isinstance(item, InferRequest)]
    assert [item.head for item in requests] == [b"good", b"bad", b""]
    assert [item.error_status and item.error_status.code for item in requests] == [None, 13, 13]
    assert requests[0].payloads == [b"x"]
    assert back[3] == Cancel(9)


def test_a_response_that_cannot_be_encoded_is_sent_as_an_error() -> None:
    codec = ResponseCodec()
    bad = InferResponse(2, error=ErrorStatus(1 << 40, "a code that no field holds"))
    first, second = codec.decode(codec.encode([InferResponse(1, b"head", [b"x"]), bad]))
    assert isinstance(first, InferResponse)
    assert isinstance(second, InferResponse)
    assert first.payloads == [b"x"]
    assert second.id == 2
    assert second.error is not None
    assert second.error.code == 13


_WITHOUT_MEMORY = """
import resource
from pathlib import Path
from nereid.core.wire.codecs import RequestCodec, ResponseCodec
from nereid.core.wire.messages import InferRequest, InferResponse

payload = bytes(4 << 20)
requests, responses = RequestCodec(), ResponseCodec()
size_bytes = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
for headroom_bytes in range(1 << 20, 24 << 20, 1 << 20):
    resource.setrlimit(resource.RLIMIT_AS, (size_bytes + headroom_bytes, -1))
    sent = requests.encode([InferRequest(1 + n, b"head", [payload], priority=n) for n in range(3)])
    received = responses.encode([InferResponse(1 + n, b"head", [payload]) for n in range(3)])
    resource.setrlimit(resource.RLIMIT_AS, (-1, -1))
    for item in (*requests.decode(sent), *responses.decode(received)):
        failed = item.error_status if isinstance(item, InferRequest) else item.error
        assert (failed is None) == (item.payloads == [payload])
        print(failed is None)
    del sent, received, item
"""


def test_requests_and_responses_for_which_there_is_no_memory_are_sent_as_errors() -> None:
    """And do not end the process by a signal."""
    output = subprocess.run(
        [sys.executable, "-c", _WITHOUT_MEMORY], check=True, capture_output=True, text=True
    ).stdout.split()
    assert len(output) == 23 * 6
    assert {*output} == {"True", "False"}


@given(st.lists(requests, max_size=6))
def test_frames_are_those_of_protobuf(items: list[InferRequest]) -> None:
    """Of whatever kinds the requests are, and in whatever order."""
    codec = RequestCodec(clock=lambda: 500.0)
    frame = pb.RequestFrame.FromString(codec.encode([*items]))
    assert frame == pb.RequestFrame.FromString(codec._message([*items]))


def test_sizes_count_heads_and_payloads() -> None:
    payloads: list[Payload] = [b"12345", b"123"]
    assert RequestCodec().size_bytes(InferRequest(1, b"head", payloads)) == 12
    assert RequestCodec().size_bytes(Cancel(1)) == 0
    assert ResponseCodec().size_bytes(InferResponse(1, b"head", payloads)) == 12


def test_cached_models_share_a_frame_with_responses() -> None:
    codec = ResponseCodec()
    back = codec.decode(codec.encode([CachedModels(("m", "n")), InferResponse(1, b"head")]))
    assert [item.id for item in back] == [0, 1]
    assert back[0] == CachedModels(("m", "n"))
    assert codec.decode(codec.encode([CachedModels(())])) == [CachedModels(())]
    notice = CachedModels(("m",), "kernel/1/2", b"key")
    assert codec.decode(codec.encode([notice])) == [notice]
    assert codec.size_bytes(CachedModels(("m", "no"))) == 0


def test_trace_and_log_rules_share_a_frame_with_responses() -> None:
    codec = ResponseCodec()
    own = TraceRule(False, 0, 5, log_frequency=7, times=False, tensors=True, turn=4)
    rules = TraceRules(TraceRule(on=True, rate=2**32 - 1, limit=-1), (("m", own),))
    logs = LogRules(verbose=2, info=False, warning=True, error=False, format="json")
    stale = TraceRules(own, (("n", own),))
    back = codec.decode(codec.encode([stale, rules, logs, InferResponse(1, b"head")]))
    assert back[:-1] == [rules, logs]


def test_ownership_shares_a_frame_with_responses() -> None:
    codec = ResponseCodec()
    stale, owned = Ownership("a", 3, ("m", "n")), Ownership("a", 2**63, ("n",), leaving=True)
    back = codec.decode(codec.encode([stale, InferResponse(1, b"head"), owned]))
    assert back[:-1] == [owned]
    assert codec.decode(codec.encode([Ownership("", 0, ())])) == [Ownership("", 0, ())]
    assert codec.size_bytes(owned) == 0


@pytest.mark.parametrize("more", [{}, {"request_id": "a"}, {"deadline": 600.0}, {"priority": 1}])
def test_requests_keep_the_digest_of_their_texts(more: dict[str, Any]) -> None:
    codec = RequestCodec(clock=lambda: 500.0)
    digests = [b"d" * 16, b"", b"e" * 200]
    items = [
        InferRequest(number, b"head", [b"x"], text_digest=digest, **more)
        for number, digest in enumerate(digests, 1)
    ]
    back = codec.decode(codec.encode([*items]))
    assert [each.text_digest for each in back if isinstance(each, InferRequest)] == digests


@pytest.mark.parametrize("more", [{}, {"text_digest": b"d" * 16}, {"priority": 1}])
def test_requests_keep_the_keys_of_their_callers(more: dict[str, Any]) -> None:
    codec = RequestCodec()
    keys = [b"t" * 12, b"", b"t" * 4]
    items = [
        InferRequest(number, b"head", [b"x"], caller_key=key, **more)
        for number, key in enumerate(keys, 1)
    ]
    back = codec.decode(codec.encode([*items]))
    assert [each.caller_key for each in back if isinstance(each, InferRequest)] == keys


@pytest.mark.parametrize("more", [{}, {"caller_key": b"k" * 12}, {"confined_caller": 1 << 60}])
def test_requests_keep_the_rights_of_their_clients(more: dict[str, Any]) -> None:
    codec = RequestCodec()
    rights = [b'[["a"]]', b"", b"r" * 200]
    items = [
        InferRequest(number, b"head", [b"x"], callable_models=each, **more)
        for number, each in enumerate(rights, 1)
    ]
    back = [each for each in codec.decode(codec.encode([*items])) if isinstance(each, InferRequest)]
    assert [each.callable_models for each in back] == rights
    assert {each.confined_caller for each in back} == {more.get("confined_caller", 0)}


def test_sources_of_keys_come_before_the_notice_after_which_gateways_send() -> None:
    codec = ResponseCodec()
    keys = TrafficKeys((("m", "principal"), ("n", "header:x")), clients=True)
    items: list[FromScheduler] = [keys, CachedModels(())]
    assert codec.decode(codec.encode(items)) == items
    assert codec.decode(codec.encode([TrafficKeys(())])) == [TrafficKeys(())]


def test_shadows_of_models_are_sent_and_taken_back() -> None:
    codec = ResponseCodec()
    items: list[FromScheduler] = [ModelShadows((("m", '{"to": "version:2"}'),))]
    assert codec.decode(codec.encode(items)) == items
    assert codec.decode(codec.encode([ModelShadows(())])) == [ModelShadows(())]


def test_changes_of_models_share_a_frame_with_responses() -> None:
    codec = ResponseCodec()
    items: list[FromScheduler] = [ModelsChanged(1), InferResponse(1, b"head"), ModelsChanged(2)]
    assert codec.decode(codec.encode(items))[:-1] == [ModelsChanged(2)]


def test_the_last_counts_share_a_frame_with_responses() -> None:
    codec = ResponseCodec()
    back = codec.decode(codec.encode([InferResponse(1, b"head"), LastCounts(b"counts")]))
    assert back[:-1] == [LastCounts(b"counts")]


def test_what_is_returned_comes_after_what_its_scheduler_announced() -> None:
    codec = ResponseCodec()
    leaving = Ownership("", 0, (), leaving=True)
    first, second = codec.decode(codec.encode([leaving, moved_response(7)]))
    assert first == leaving
    assert isinstance(second, MovedResponse)


def test_a_moved_request_is_an_error_for_who_knows_one_scheduler() -> None:
    codec = ResponseCodec()
    failed = InferResponse(8, error=ErrorStatus(14, "no"))
    moved, other = codec.decode(codec.encode([moved_response(7), failed]))
    assert (type(moved), type(other)) == (MovedResponse, InferResponse)
    assert isinstance(moved, InferResponse)
    assert (moved.id, moved.more) == (7, False)
    assert moved.error is not None
    assert moved.error.code == 14


def test_traces_come_with_last_responses() -> None:
    codec = ResponseCodec()
    times = (("REQUEST_START", 1), ("REQUEST_END", 2**63))
    tensors = (
        TracedTensor("TENSOR_QUEUE_INPUT", "I", "INT8", (1, 2), b"ab"),
        TracedTensor("TENSOR_QUEUE_INPUT", "J", "INT8", (0,), b""),
        TracedTensor("TENSOR_BACKEND_OUTPUT", "O", "INT8", (), None),
    )
    traced = TracedModel(bytes(26), b"p", "m", 3, "id", times, tensors)
    plain, first = InferResponse(1, b"head"), InferResponse(2, b"head", more=True)
    last = InferResponse(2, b"head", trace=(traced, traced._replace(times=())))
    # The size of a trace counts when frames are filled.
    assert codec.size_bytes(last) == codec.size_bytes(plain) + 2 * 2
    notice, *back = codec.decode(codec.encode([plain, first, last, CachedModels(("m",))]))
    assert [each.trace for each in back if isinstance(each, InferResponse)] == [(), (), last.trace]
    assert notice == CachedModels(("m",))


def test_a_digest_is_sent_with_its_request() -> None:
    codec = RequestCodec()
    (back,) = codec.decode(codec.encode([InferRequest(1, b"", [], digest=bytes(range(16)))]))
    assert isinstance(back, InferRequest)
    assert back.digest == bytes(range(16))
