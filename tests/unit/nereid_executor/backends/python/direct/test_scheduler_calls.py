"""A worker's own link: calls over it are those by the executor, and it may fail at any time."""

from __future__ import annotations

import asyncio
import os
import queue
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from nereid.core.wire.messages import (
    Cancel,
    FlowControl,
    InferRequest,
    InferResponse,
    Release,
)
from nereid.pb import kserve_pb2
from nereid.shm.mappings import read
from nereid.shm.reference import SharedMemory
from nereid.shm.segments import SegmentPool
from nereid_executor.backends.python.worker_site.nereid_worker.connection import pending_calls
from nereid_executor.backends.python.worker_site.nereid_worker.protocol import wire
from nereid_executor.backends.python.worker_site.nereid_worker.protocol.channel import Channel
from tests.support.executor.calls_site import (
    LIMIT_S,
    DirectWay,
    LinkScheduler,
)
from tests.support.forms import pure_only

HEAD = kserve_pb2.ModelInferResponse(
    outputs=[{"name": "Y", "datatype": "UINT8", "shape": [2]}]
).SerializeToString()
LOST = ["UNAVAILABLE", "Model m - Error when running inference: the scheduler cannot be reached"]


def echo(request: InferRequest) -> list[InferResponse]:
    return [InferResponse(request.id, HEAD, list(request.payloads))]


def silent(_request: InferRequest) -> list[InferResponse]:
    return []


def infer(**changed: Any) -> dict[str, Any]:
    about = {
        "what": "infer",
        "model": "m",
        "version": -1,
        "id": "q",
        "inputs": [["X", "UINT8", [2]]],
        "outputs": ["Y"],
        "parameters": {},
        "correlation_id": 0,
        "flags": 0,
        "timeout_us": 0,
        "trace": "",
        "deadline_ns": 0,
        "caller_known": True,
    }
    return {**about, **changed}


class Responses:
    """Those to one call, as they come."""

    def __init__(
        self, calls: pending_calls.PendingCalls, about: dict[str, Any], *tensors: bytes
    ) -> None:
        self._came: queue.SimpleQueue[pending_calls.Response] = queue.SimpleQueue()
        self.number = calls.start_call(about, tensors or (b"ab",), self._came.put)

    def next(self) -> pending_calls.Response:
        return self._came.get(timeout=LIMIT_S)

    def up_to_last(self) -> list[pending_calls.Response]:
        responses = [self.next()]
        while responses[-1].flags & wire.MORE:
            responses.append(self.next())
        return responses

    @property
    def empty(self) -> bool:
        return self._came.empty()


def wait(
    calls: pending_calls.PendingCalls, about: dict[str, Any], *tensors: bytes
) -> pending_calls.Response:
    return calls.call_and_wait(about, tensors or (b"ab",), queue.SimpleQueue())


def content(response: pending_calls.Response) -> list[bytes]:
    return [bytes(each) for each in response.tensors]


MakeScheduler = Callable[..., LinkScheduler]
MakeWay = Callable[..., DirectWay]


@pytest.fixture
def make_scheduler(tmp_path: Path) -> Iterator[MakeScheduler]:
    made: list[LinkScheduler] = []

    def make(respond: Any = echo, **options: Any) -> LinkScheduler:
        made.append(LinkScheduler(f"unix:{tmp_path}/{len(made)}", respond, **options))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def scheduler(make_scheduler: MakeScheduler) -> LinkScheduler:
    return make_scheduler()


@pytest.fixture
def make_way(make_scheduler: MakeScheduler) -> Iterator[MakeWay]:
    made: list[DirectWay] = []

    def make(scheduler: LinkScheduler, **changed: Any) -> DirectWay:
        made.append(DirectWay(scheduler, **changed))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def way(scheduler: LinkScheduler, make_way: MakeWay) -> DirectWay:
    return make_way(scheduler)


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as pool:
        yield pool


# ---- calls


def test_a_call_that_waits_and_one_that_does_not(way: DirectWay) -> None:
    assert content(wait(way.calls, infer(), b"cd")) == [b"cd"]
    (response,) = Responses(way.calls, infer(), b"ef").up_to_last()
    assert (response.flags, content(response)) == (0, [b"ef"])
    assert not way.calls.any_pending()
    assert way.requests.qsize() == 1


def test_many_threads_call_at_once(way: DirectWay, pool: ThreadPoolExecutor) -> None:
    def call(number: int) -> bool:
        tensor = number.to_bytes(2)
        if number % 3:
            response = wait(way.calls, infer(), tensor)
        else:
            response = Responses(way.calls, infer(), tensor).next()
        return content(response) == [tensor]

    assert all(pool.map(call, range(2000)))
    assert not way.calls.any_pending()
    assert way.requests.qsize() == 1


def test_calls_within_a_running_loop(scheduler: LinkScheduler, make_way: MakeWay) -> None:
    """The first one too, which opens the link: a loop cannot be run within another."""
    way = make_way(scheduler)

    async def model() -> pending_calls.Response:
        return wait(way.calls, infer(), b"cd")

    assert content(asyncio.run(model())) == [b"cd"]


def test_responses_of_a_decoupled_model_are_paused_and_cancelled(
    make_scheduler: MakeScheduler, make_way: MakeWay
) -> None:
    scheduler = make_scheduler(silent)
    way = make_way(scheduler)
    responses = Responses(way.calls, infer(decoupled=True))
    request = scheduler.requests.get(timeout=LIMIT_S)
    scheduler.send(*(InferResponse(request.id, HEAD, [b"ab"], more=True) for _ in range(3)))
    assert [responses.next().flags for _ in range(3)] == [wire.MORE] * 3
    for what, seen in (
        ("pause", FlowControl(request.id, paused=True)),
        ("resume", FlowControl(request.id, paused=False)),
    ):
        done = Responses(way.calls, {"what": what, "call": responses.number})
        assert done.next() == pending_calls.Response(wire.EMPTY, None, ())
        assert scheduler.notices.get(timeout=LIMIT_S) == seen
    way.calls.cancel_call(responses.number)
    assert scheduler.notices.get(timeout=LIMIT_S) == Cancel(request.id)
    assert not way.calls.any_pending()
    # What was on its way is dropped, and others go on.
    scheduler.send(InferResponse(request.id, HEAD, [b"ab"]))
    other = Responses(way.calls, infer())
    scheduler.send(InferResponse(scheduler.requests.get(timeout=LIMIT_S).id, HEAD, [b"cd"]))
    assert content(other.next()) == [b"cd"]
    assert responses.empty


# ---- memory


def test_large_requests_are_by_reference_and_their_memory_is_used_again(
    scheduler: LinkScheduler, make_way: MakeWay
) -> None:
    seen: list[bytes] = []

    def respond(request: InferRequest) -> list[InferResponse]:
        (payload,) = request.payloads
        assert isinstance(payload, SharedMemory)
        seen.append(bytes(read(payload)))
        return [InferResponse(request.id, HEAD, [payload.segment_name.encode()])]

    scheduler.respond = respond
    way = make_way(scheduler)
    tensors = [bytes([each]) * 200_000 for each in range(3)]
    segments = {content(wait(way.calls, infer(), each))[0] for each in tensors}
    assert seen == tensors
    assert len(segments) == 1


@pytest.mark.parametrize("then", [infer(), infer(trace="00-zz-yy-01")], ids=["good", "malformed"])
@pytest.mark.parametrize("size", [70_000, 3 << 20])
def test_segments_of_responses_are_released_once_the_model_has_read_them(
    scheduler: LinkScheduler, way: DirectWay, size: int, then: dict[str, Any]
) -> None:
    """Copied ones by the next call, mapped ones when the model drops them."""
    memory = SegmentPool(1 << 23)

    def respond(request: InferRequest) -> list[InferResponse]:
        segment = memory.acquire_segment(size)
        assert segment is not None
        segment.view[:4] = b"data"
        names.append(segment.name)
        payloads: list[Any] = [segment.range(0, size)]
        return [InferResponse(request.id, HEAD, payloads, segment_name=segment.name)]

    names: list[str] = []
    scheduler.respond = respond
    response = wait(way.calls, infer())
    assert bytes(response.tensors[0][:4]) == b"data"
    del response
    scheduler.respond = echo
    wait(way.calls, dict(then))
    # Of a frame that nobody waits for, the next call.
    wait(way.calls, infer())
    assert scheduler.notices.get(timeout=LIMIT_S) == Release((names[0],))
    memory.discard_segments_of(None)


# ---- errors, and no link


@pytest.mark.parametrize(
    "about",
    [infer(trace="00-zz-yy-01"), infer(inputs=[["X"]]), infer(outputs=7)],
)
def test_malformed_calls_get_an_error(way: DirectWay, about: dict[str, Any]) -> None:
    for response in (wait(way.calls, about), Responses(way.calls, about).next()):
        assert response.flags == wire.ERROR
        assert response.message[0] == "INVALID_ARG"
        assert "malformed request to the mesh" in response.message[1]
    assert content(wait(way.calls, infer(), b"ab")) == [b"ab"]
    assert not way.calls.any_pending()


@pytest.mark.parametrize("granted", [(None,), ()])
def test_a_link_that_is_not_granted(
    scheduler: LinkScheduler, make_way: MakeWay, granted: tuple[None, ...]
) -> None:
    way = make_way(scheduler, granted=granted, timeout_s=LIMIT_S if granted else 0.0)
    assert way.ways.calls() is None
    # It is asked for once.
    assert way.ways.calls() is None
    assert way.requests.qsize() == 1


def test_refused_credentials(scheduler: LinkScheduler, make_way: MakeWay) -> None:
    way = make_way(scheduler, metadata=[["credential", "used before"]], timeout_s=0.2)
    assert way.ways.calls() is None
    assert scheduler.calls
    assert not scheduler.links


def test_a_scheduler_that_does_not_greet(make_scheduler: MakeScheduler, make_way: MakeWay) -> None:
    way = make_way(make_scheduler(greets=False), timeout_s=0.1)
    assert way.ways.calls() is None
    way.path._driver._thread.join(LIMIT_S)
    assert way.path._driver.loop.is_closed()


def test_no_link_is_opened_in_the_thread_that_would_read_its_grant(
    scheduler: LinkScheduler, make_way: MakeWay
) -> None:
    reads = True
    way = make_way(scheduler, must_not_wait=lambda: reads)
    assert way.ways.calls() is None
    reads = False
    assert way.ways.calls() is not None
    reads = True
    assert way.ways.calls() is not None


def test_a_grant_for_which_nobody_asked(scheduler: LinkScheduler, make_way: MakeWay) -> None:
    """The stream before had asked, too late."""
    way = make_way(scheduler)
    way.ways.on_link({"metadata": [["credential", "old"]], "domain": ""})
    assert content(wait(way.calls, infer(), b"ab")) == [b"ab"]
    assert len(scheduler.calls) == 1


# ---- the end of the link


def calls_without_response(
    way: DirectWay, scheduler: LinkScheduler, pool: ThreadPoolExecutor
) -> list[Callable[[], list[pending_calls.Response]]]:
    """Calls of all kinds without a response yet."""
    scheduler.respond = silent
    calls = way.calls
    waiting = [pool.submit(wait, calls, infer()) for _ in range(3)]
    others = [Responses(calls, infer()), Responses(calls, infer(decoupled=True))]
    for _ in range(5):
        scheduler.requests.get(timeout=LIMIT_S)
    return [
        *(lambda each=each: [each.result(LIMIT_S)] for each in waiting),
        *(each.up_to_last for each in others),
    ]


def test_each_pending_call_gets_one_error_when_the_link_breaks(
    scheduler: LinkScheduler, way: DirectWay, pool: ThreadPoolExecutor
) -> None:
    calls, ends = way.calls, calls_without_response(way, scheduler, pool)
    scheduler.break_links()
    for end in ends:
        assert end() == [pending_calls.Response(wire.ERROR, LOST, ())]
    assert not calls.any_pending()
    # Calls go through the executor from now on; who has the link still is told that it is lost.
    way.path._driver._thread.join(LIMIT_S)
    assert way.ways.calls() is None
    assert wait(calls, infer()).message == LOST
    assert Responses(calls, infer()).up_to_last()[0].message == LOST
    calls.cancel_call(Responses(calls, infer()).number)
    assert way.requests.qsize() == 1


def test_each_pending_call_gets_one_error_when_the_link_is_closed(
    scheduler: LinkScheduler, way: DirectWay, pool: ThreadPoolExecutor
) -> None:
    calls, ends = way.calls, calls_without_response(way, scheduler, pool)
    way.close()
    way.close()
    for end in ends:
        assert end() == [pending_calls.Response(wire.ERROR, LOST, ())]
        # Nothing goes on for nobody.
        assert isinstance(scheduler.notices.get(timeout=LIMIT_S), Cancel)
    assert not calls.any_pending()
    assert way.ways.calls() is None


def test_a_link_that_is_no_longer_needed_ends_after_its_pending_calls(
    scheduler: LinkScheduler, way: DirectWay, pool: ThreadPoolExecutor
) -> None:
    ends = calls_without_response(way, scheduler, pool)
    requests = [each for each in scheduler.seen if each.payloads == [b"ab"]]
    way.ways.close(cut=False)
    assert way.ways.calls() is None
    for request in requests:
        scheduler.send(InferResponse(request.id, HEAD, [b"cd"]))
    for end in ends:
        assert [content(each) for each in end()] == [[b"cd"]]
    way.path._driver._thread.join(LIMIT_S)
    assert way.path._driver.loop.is_closed()


@pure_only
@pytest.mark.parametrize("error", [ValueError("wrong"), KeyboardInterrupt()])
def test_nobody_waits_in_vain_for_a_call_that_was_lost_with_what_was_raised(
    scheduler: LinkScheduler, way: DirectWay, pool: ThreadPoolExecutor, error: BaseException
) -> None:
    """As by a signal handler, in the thread that runs the loop, while it begins another's call."""
    calls, ends = way.calls, calls_without_response(way, scheduler, pool)

    def lose(*_: Any) -> None:
        raise error

    way.path._submit = lose  # type: ignore[method-assign, assignment]
    lost = Responses(calls, infer())
    assert [each.message[0] for each in lost.up_to_last()] == ["UNAVAILABLE"]
    raised = []
    for end in ends:
        try:
            assert [each.message[0] for each in end()] == ["UNAVAILABLE"]
        except type(error) as came:
            raised.append(came)
    # None, if it was the link's own thread.
    assert raised in ([], [error])
    assert not calls.any_pending()
    assert way.ways.calls() is None


def test_the_link_is_closed_while_it_is_opened(
    make_scheduler: MakeScheduler, make_way: MakeWay, pool: ThreadPoolExecutor
) -> None:
    scheduler = make_scheduler(greets=False)
    way = make_way(scheduler, timeout_s=3600.0)
    opening = [pool.submit(way.ways.calls) for _ in range(2)]
    scheduler.accepted.get(timeout=LIMIT_S)
    way.close()
    assert [each.result(LIMIT_S) for each in opening] == [None, None]
    assert way.ways.calls() is None


def test_the_link_is_closed_before_it_is_granted(
    scheduler: LinkScheduler, make_way: MakeWay, pool: ThreadPoolExecutor
) -> None:
    way = make_way(scheduler, granted=(), timeout_s=3600.0)
    opening = pool.submit(way.ways.calls)
    assert way.requests.get(timeout=LIMIT_S)
    way.close()
    assert opening.result(LIMIT_S) is None


@pytest.mark.parametrize("within_loop", [False, True])
def test_a_link_that_is_closed_is_not_opened(
    scheduler: LinkScheduler, *, within_loop: bool
) -> None:
    path = DirectWay(scheduler).new_path()
    path.close()

    async def open_it() -> bool:
        return path.open(3600.0)

    assert not (asyncio.run(open_it()) if within_loop else path.open(3600.0))
    path._driver._thread.join(LIMIT_S)
    assert path._driver.loop.is_closed()


def test_a_forked_process_leaves_the_link_alone(scheduler: LinkScheduler, way: DirectWay) -> None:
    """It has a copy of a lock that another thread held."""
    # Whoever has such a link has a channel, which notices forks.
    ours, theirs = socket.socketpair()
    with ours, theirs:
        Channel(ours)
    scheduler.respond = silent
    pending = Responses(way.calls, infer())
    request = scheduler.requests.get(timeout=LIMIT_S)
    held, forked = threading.Event(), threading.Event()

    def hold() -> None:
        with way.path._driver._gate:
            held.set()
            forked.wait(LIMIT_S)

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait(LIMIT_S)
    child = os.fork()
    if not child:
        signal.alarm(int(LIMIT_S))
        way.calls.cancel_call(pending.number)
        way.close()
        os._exit(0)
    forked.set()
    assert os.waitpid(child, 0)[1] == 0
    holder.join(LIMIT_S)
    scheduler.send(InferResponse(request.id, HEAD, [b"ab"]))
    assert content(pending.next()) == [b"ab"]
    assert scheduler.notices.empty()


def test_calls_and_the_end_at_once(
    make_scheduler: MakeScheduler, make_way: MakeWay, pool: ThreadPoolExecutor
) -> None:
    """Each call has a response, or an error, whatever comes first."""
    scheduler = make_scheduler()
    for turn in range(30):
        way = make_way(scheduler)
        calls = way.calls
        started = threading.Barrier(5)

        def call(
            number: int, calls: pending_calls.PendingCalls = calls, started: Any = started
        ) -> list[Any]:
            started.wait(LIMIT_S)
            return [
                wait(calls, infer()) if (number + each) % 2 else Responses(calls, infer()).next()
                for each in range(10)
            ]

        calling = [pool.submit(call, number) for number in range(4)]
        started.wait(LIMIT_S)
        if turn % 2:
            scheduler.break_links()
        else:
            way.close()
        for each in calling:
            for response in each.result(LIMIT_S):
                assert response.message == LOST or content(response) == [b"ab"]
        assert not calls.any_pending()
        way.close()
