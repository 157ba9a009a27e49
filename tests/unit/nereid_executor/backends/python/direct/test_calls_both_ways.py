"""The same calls over a worker's own link and by its executor: what the scheduler and the model see
is the same, bit by bit.
"""

from __future__ import annotations

import json
import queue
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from nereid.core.wire.messages import DECOUPLED, ErrorStatus, InferRequest, InferResponse, Release
from nereid.pb import kserve_pb2
from nereid.shm.mappings import read
from nereid.shm.reference import SharedMemory
from nereid.shm.segments import SegmentPool
from nereid_executor.backends.python.worker_site.nereid_worker.connection import pending_calls
from nereid_executor.backends.python.worker_site.nereid_worker.pb_utils import model_calls
from nereid_executor.backends.python.worker_site.nereid_worker.protocol import wire
from tests.support.executor.calls_site import LIMIT_S, DirectWay, ExecutorsWay, LinkScheduler

HOUR_S = 3600.0
TRACE = f"00-{'ab' * 16}-{'cd' * 8}-01"
Respond = Callable[[InferRequest], list[InferResponse]]


def head(*outputs: tuple[str, str, list[int]], **parameters: Any) -> bytes:
    response = kserve_pb2.ModelInferResponse(model_name="m", id="not asked")
    for name, datatype, shape in outputs:
        response.outputs.add(name=name, datatype=datatype, shape=shape)
    for key, (choice, value) in parameters.items():
        setattr(response.parameters[key], choice, value)
    return response.SerializeToString()


Y = ("Y", "UINT8", [2])
HEAD = head(Y)


def about(**changed: Any) -> dict[str, Any]:
    described = {
        "what": "infer",
        "model": "m",
        "version": -1,
        "id": "",
        "inputs": [("X", "UINT8", [2])],
        "outputs": ["Y"],
        "parameters": {},
        "correlation_id": 0,
        "flags": 0,
        "timeout_us": 0,
        "trace": "",
        "deadline_ns": 0,
        "caller_known": True,
    }
    return {**described, **changed}


def responds(*responses: dict[str, Any]) -> Respond:
    """By these fields, with a head and a payload unless they say otherwise."""
    plain = {"head": HEAD, "payloads": [b"yz"]}

    def respond(request: InferRequest) -> list[InferResponse]:
        return [InferResponse(request.id, **{**plain, **each}) for each in responses]

    return respond


def fails(*error_status: Any, more: bool = False, **fields: Any) -> Respond:
    error = ErrorStatus(*error_status, **fields)
    return lambda request: [InferResponse(request.id, error=error, more=more)]


def echoes(request: InferRequest) -> list[InferResponse]:
    (payload,) = request.payloads
    content = bytes(read(payload)) if type(payload) is SharedMemory else payload
    return [InferResponse(request.id, head(("Y", "UINT8", [len(content)])), [content])]


def soon() -> int:
    return time.monotonic_ns() + int(HOUR_S * 1e9)


AB = (b"ab",)
EMPTY: Respond = responds({"head": b"", "payloads": []})
PARAMETERS = {
    "a": ("bool_param", False),
    "b": ("int64_param", -(1 << 63)),
    "c": ("string_param", "é\0"),
    "d": ("double_param", 0.1),
    "e": ("uint64_param", (1 << 64) - 1),
}
# What is called, with which tensors, and what is responded.
CALLS: dict[str, tuple[dict[str, Any], tuple[bytes, ...], Respond]] = {
    "plain": (about(), AB, echoes),
    "no outputs named": (about(outputs=[]), AB, echoes),
    "version and id": (about(version=3, id="é q"), AB, echoes),
    "unicode": (about(model="modèle", inputs=[("ü", "BYTES", [1])]), (b"\1\0\0\0a",), echoes),
    "parameters": (about(parameters={"a": True, "b": -1, "c": "é", "d": 1 << 63}), AB, echoes),
    "sequence": (about(correlation_id=7, flags=1), AB, echoes),
    "sequence of text": (about(correlation_id="s", flags=2), AB, echoes),
    "flags alone": (about(flags=3), AB, echoes),
    "timeout": (about(timeout_us=(1 << 64) - 1), AB, echoes),
    "trace": (about(trace=TRACE), AB, echoes),
    "tracestate": (about(trace=TRACE, tracestate="a=é," + "b" * 600), AB, echoes),
    "short trace": (about(trace="00-1"), AB, echoes),
    "unknown caller": (about(caller_known=False), AB, echoes),
    "deadline": (about(deadline_ns=soon()), AB, echoes),
    "decoupled": (
        about(decoupled=True),
        AB,
        responds(
            {"more": True}, {"more": True, "payloads": [b"\0\1"]}, {"head": b"", "payloads": []}
        ),
    ),
    "decoupled, an error last": (
        about(decoupled=True),
        AB,
        lambda request: [
            *responds({"more": True})(request),
            *fails(5, "no", accepted=True, more=True)(request),
            *fails(14, "end")(request),
        ],
    ),
    "empty tensors": (
        about(inputs=[("X", "FP32", [0])]),
        (b"",),
        responds({"head": head(("Y", "FP32", [0])), "payloads": [b""]}),
    ),
    "several tensors": (
        about(inputs=[("X", "UINT8", [1]), ("Z", "UINT8", [3])]),
        (b"a", b"bcd"),
        responds({"head": head(("A", "INT8", [1]), Y), "payloads": [b"\1", b"yz"]}),
    ),
    "odd sizes": (
        about(),
        AB,
        responds(
            {
                "head": head(("A", "UINT8", [1]), ("B", "FP64", [1]), ("C", "BF16", [1])),
                "payloads": [b"a", b"\0" * 7 + b"\1", b"\2\3"],
            }
        ),
    ),
    "large": (about(), (b"ab" * 100_000,), echoes),
    "no response": (about(), AB, EMPTY),
    "no outputs": (about(), AB, responds({"head": head(), "payloads": []})),
    "parameters of a response": (about(), AB, responds({"head": head(Y, **PARAMETERS)})),
    "error": (about(), AB, fails(3, "no")),
    "error of the model": (about(), AB, fails(13, "it failed: é", accepted=True)),
    "odd code": (about(), AB, fails(99, "odd", accepted=True)),
    "unknown model": (about(), AB, fails(5, "Request for unknown model: 'm' is not found")),
    "decoupled model": (about(), AB, fails(12, DECOUPLED)),
    "deadline passed": (about(deadline_ns=1), AB, lambda _request: []),
    "malformed inputs": (about(inputs=[("X",)]), AB, echoes),
    "malformed trace": (about(trace="00-zz-yy-01"), AB, echoes),
    "malformed shape": (about(inputs=[("X", "UINT8", ["a"])]), AB, echoes),
}


@pytest.fixture(scope="module")
def scheduler(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LinkScheduler]:
    scheduler = LinkScheduler(f"unix:{tmp_path_factory.mktemp('link') / 's'}", echoes)
    yield scheduler
    scheduler.close()


@pytest.fixture(scope="module")
def ways(scheduler: LinkScheduler) -> Iterator[list[DirectWay | ExecutorsWay]]:
    ways: list[DirectWay | ExecutorsWay] = [DirectWay(scheduler), ExecutorsWay(scheduler)]
    for way in ways:
        # It opens the executor's link.
        assert not call(way, *CALLS["plain"][:2])[0].flags
        scheduler.requests.get(timeout=LIMIT_S)
    yield ways
    for way in ways:
        way.close()


def call(
    way: DirectWay | ExecutorsWay, described: dict[str, Any], tensors: tuple[bytes, ...]
) -> list[pending_calls.Response]:
    """The responses to a call that does not wait."""
    came: queue.SimpleQueue[pending_calls.Response] = queue.SimpleQueue()
    way.calls.start_call(dict(described), tensors, came.put)
    responses = [came.get(timeout=LIMIT_S)]
    while responses[-1].flags & wire.MORE:
        responses.append(came.get(timeout=LIMIT_S))
    return responses


def call_and_wait(
    way: DirectWay | ExecutorsWay, described: dict[str, Any], tensors: tuple[bytes, ...]
) -> list[pending_calls.Response]:
    return [way.calls.call_and_wait(dict(described), tensors, queue.SimpleQueue())]


def seen_by_scheduler(request: InferRequest) -> tuple[Any, ...]:
    """All that came but the id, which numbers a way's requests; deadlines are in hours."""
    tensors = [
        (True, bytes(read(each))) if isinstance(each, SharedMemory) else (False, bytes(each))
        for each in request.payloads
    ]
    names = [name for name in dir(request) if name[0] != "_" and name not in {"id", "payloads"}]
    rest = [getattr(request, name) for name in names]
    hours = [
        round((each - time.monotonic()) / HOUR_S) if type(each) is float else each for each in rest
    ]
    return tensors, hours


def seen_by_model(response: pending_calls.Response) -> tuple[Any, ...]:
    made = model_calls._response_of(response)
    tensors: list[tuple[Any, ...]] = []
    for tensor in made.output_tensors():
        described = (tensor.name(), tensor.triton_dtype(), tensor.shape(), bytes(tensor.raw()))
        if tensor._datatype == "BF16":
            tensors.append(described)
            continue
        array = tensor.as_numpy()
        array[...] = 7
        flags = (array.flags.writeable, array.flags.aligned, array.flags.c_contiguous)
        tensors.append((*described, *flags, array.dtype, bytes(array)))
    error = made.error()
    failure = None if error is None else (error.code(), error.message())
    # As JSON: tuples are lists.
    described = json.loads(json.dumps(response.message))
    return response.flags, described, tensors, made.parameters(), failure


@pytest.mark.parametrize("case", CALLS)
def test_calls_are_the_same_by_both_ways(
    scheduler: LinkScheduler, ways: list[DirectWay | ExecutorsWay], case: str
) -> None:
    described, tensors, scheduler.respond = CALLS[case]
    outcomes = []
    for way in ways:
        hows = [call] if described.get("decoupled") else [call, call_and_wait]
        # A second time, as what is said of it may be remembered.
        for how in hows * 2:
            responses = how(way, described, tensors)
            requests = []
            if "malformed" not in case:
                requests.append(scheduler.requests.get(timeout=LIMIT_S))
            outcomes.append(
                (
                    [seen_by_scheduler(each) for each in requests],
                    [seen_by_model(each) for each in responses],
                )
            )
    assert scheduler.requests.empty()
    first, *others = outcomes
    for other in others:
        assert other == first
    if "malformed" in case:
        ((_, said, *_),) = first[1]
        assert said[0] == "INVALID_ARG"


@pytest.mark.parametrize("size", [65_536, 1 << 20, (1 << 20) + 1, 3 << 20])
def test_responses_in_shared_memory_are_the_same_by_both_ways(
    scheduler: LinkScheduler, ways: list[DirectWay | ExecutorsWay], size: int
) -> None:
    memory = SegmentPool(1 << 24)
    outcomes = []

    def respond(request: InferRequest) -> list[InferResponse]:
        segment = memory.acquire_segment(size + 64)
        assert segment is not None
        segment.view[: size + 64] = bytes(range(256)) * (size // 256) + bytes(size % 256 + 64)
        places: list[Any] = [segment.range(64, size), segment.range(0, 3)]
        response = head(("Y", "UINT8", [size]), ("Z", "UINT8", [3]))
        return [InferResponse(request.id, response, places, segment_name=segment.name)]

    scheduler.respond = respond
    for way in ways:
        for how in (call, call_and_wait):
            (response,) = how(way, about(), AB)
            outcomes.append(seen_by_model(response))
            scheduler.requests.get(timeout=LIMIT_S)
            del response
    scheduler.respond = echoes
    for way in ways:
        # It takes along what was copied.
        call(way, about(), AB)
        scheduler.requests.get(timeout=LIMIT_S)
    released: list[str] = []
    while len(released) < len(outcomes):
        notice = scheduler.notices.get(timeout=LIMIT_S)
        if isinstance(notice, Release):
            released += notice.segment_names
    assert len({*released}) == len(outcomes)
    for outcome in outcomes[1:]:
        assert outcome == outcomes[0]
    memory.discard_segments_of(None)
