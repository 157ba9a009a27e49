"""Requests that a model gets again, and the senders that it keeps meanwhile."""

from __future__ import annotations

import gc
import threading

import numpy as np
import pytest

from nereid_executor.backends.python.worker_site.nereid_worker.pb_utils import api as pb
from nereid_executor.backends.python.worker_site.nereid_worker.protocol import wire
from nereid_executor.backends.python.worker_site.nereid_worker.runtime.execution import (
    CANCEL,
    PAUSE,
    RESUME,
    BatchExecution,
)
from nereid_executor.backends.python.worker_site.nereid_worker.runtime.iterations import (
    Iterations,
)
from tests.support.executor.reply_sink import ReplySink

FINAL = pb.TRITONSERVER_RESPONSE_COMPLETE_FINAL
AGAIN = pb.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE


class Worker:
    """What the runtime does with batches of one request each."""

    def __init__(self, *, decoupled: bool = True) -> None:
        self.sink = ReplySink()
        self.iterations = Iterations()
        self.decoupled = decoupled
        self._batches = 0

    def begin(self, iteration: str) -> tuple[BatchExecution, pb.InferenceRequest]:
        self._batches += 1
        execution = BatchExecution(
            self._batches, self.sink, lambda: None, decoupled=self.decoupled, iterative=True
        )
        # As members of which one was rejected before it.
        execution.requested_outputs = [frozenset(), frozenset({"Y"})]
        request = pb.InferenceRequest("", 0, [], [], "m")
        request._execution, request._member = execution, 1
        if iteration:
            self.iterations.begin_request(execution, request, iteration)
        return execution, request

    def end(self, execution: BatchExecution, request: pb.InferenceRequest) -> list[tuple[int, int]]:
        replies = self.iterations.end_iteration([request])
        found = [(reply.member, reply.flags) for reply in replies]
        execution.finish(replies)
        return found


def response() -> pb.InferenceResponse:
    return pb.InferenceResponse([pb.Tensor("Y", np.zeros(1, np.int32))])


def test_a_sender_is_for_all_iterations() -> None:
    worker = Worker()
    first, request = worker.begin("1.0")
    sender = request.get_response_sender()
    sender.send(response())
    request.set_release_flags(AGAIN)
    assert worker.end(first, request) == [(1, wire.RESCHEDULED)]
    # Between the iterations it waits.
    sent = list(worker.sink.sent)
    sender.send(response())
    assert worker.sink.sent == sent == [(1, 1, wire.MORE), (1, 1, wire.RESCHEDULED)]
    second, request = worker.begin("1.1")
    assert worker.sink.sent[2:] == [(2, 1, wire.MORE)]
    sender.send(response(), FINAL)
    assert worker.sink.sent[3:] == [(2, 1, 0)]
    # The last response has been sent: the request does not come again.
    request.set_release_flags(AGAIN)
    assert worker.end(second, request) == []


def test_each_iteration_has_a_sender_of_its_own_as_well() -> None:
    worker = Worker()
    for number in range(3):
        execution, request = worker.begin(f"1.{number}")
        request.get_response_sender().send(response())
        request.set_release_flags(AGAIN)
        assert worker.end(execution, request) == [(1, wire.RESCHEDULED)]
    del execution, request
    gc.collect()
    # Nothing is sent for those that are let go of.
    flags = [flags for _, _, flags in worker.sink.sent]
    assert flags == [wire.MORE, wire.RESCHEDULED] * 3


def test_a_request_that_is_let_go_of_unrescheduled_fails() -> None:
    worker = Worker()
    execution, request = worker.begin("1.0")
    request.get_response_sender()
    assert worker.end(execution, request) == []
    del execution, request
    gc.collect()
    assert worker.sink.sent == [(1, 1, wire.ERROR)]


@pytest.mark.parametrize("decoupled", [True, False])
def test_a_null_request_may_be_rescheduled_like_others(decoupled: bool) -> None:
    """By models that do not look at READY. It ends, and does not come again."""
    worker = Worker(decoupled=decoupled)
    execution, request = worker.begin("")
    request.set_release_flags(AGAIN)
    assert worker.end(execution, request) == [(1, wire.RESCHEDULED)]
    del execution, request
    gc.collect()
    assert worker.sink.sent == [(1, 1, wire.RESCHEDULED)]


def test_the_flag_can_be_taken_back() -> None:
    worker = Worker(decoupled=False)
    execution, request = worker.begin("1.0")
    request.set_release_flags(AGAIN)
    request.set_release_flags(pb.TRITONSERVER_REQUEST_RELEASE_ALL)
    assert worker.end(execution, request) == []


def test_a_sender_of_another_request_is_not_taken_for_one_that_begins() -> None:
    """The numbers begin anew with each scheduler."""
    worker = Worker()
    execution, request = worker.begin("1.0")
    kept = request.get_response_sender()
    request.set_release_flags(AGAIN)
    worker.end(execution, request)
    worker.begin("1.0")
    kept.send(response())
    assert worker.sink.sent[1:] == []


def test_responses_between_iterations_are_bounded() -> None:
    worker = Worker()
    execution, request = worker.begin("1.0")
    sender = request.get_response_sender()
    request.set_release_flags(AGAIN)
    worker.end(execution, request)
    for _ in range(256):
        sender.send(response())
    with pytest.raises(pb.TritonModelException, match="256 responses wait for the next iteration"):
        sender.send(response())


def test_a_client_that_cannot_keep_up_holds_senders() -> None:
    worker = Worker()
    execution, request = worker.begin("1.0")
    sender = request.get_response_sender()
    execution.on_control(1, PAUSE)
    thread = threading.Thread(target=sender.send, args=(response(),))
    thread.start()
    execution.on_control(1, RESUME)
    thread.join(10)
    assert worker.sink.sent == [(1, 1, wire.MORE)]
    execution.on_control(1, PAUSE)
    execution.on_control(1, CANCEL)
    assert sender.is_cancelled()
    sender.send(response())
    assert len(worker.sink.sent) == 2
