"""Batches executed as a whole: each member's rows, and errors."""

from __future__ import annotations

import logging

import numpy as np
import pytest

from nereid.backends import ModelLostError
from nereid.core.errors import INTERNAL_MESSAGE, Unavailable
from nereid.pb import nereid_pb2 as pb
from nereid_executor.batch.runner import Runner
from tests.support.executor.doubler import Doubler
from tests.support.executor.frames import Frames
from tests.support.executor.instances import adapter_of, execute, instance
from tests.support.models.onnx_models import head, identity_config, member, response_of


def runner(model: Doubler, max_batch_size: int = 8) -> Runner:
    return Runner(instance(identity_config("FP32", "1", max_batch_size), version=4), model)


def request(value: float, rows: int = 1) -> pb.BatchMember:
    return member(head(("x", "FP32", [rows, 1])), np.full(rows, value, np.float32).tobytes())


def test_a_failing_model_fails_its_batch_with_its_text() -> None:
    model = Doubler(Unavailable("out of order"))
    run = runner(model)
    executed = execute(run, request(1), member(b"\xff"), request(2))
    errors = [(one.error.code, one.error.message, one.error.accepted) for one in executed.responses]
    failed = (14, "out of order", True)
    assert errors == [failed, (13, "a batch member's head is no ModelInferRequest", False), failed]
    assert executed.compute_infer_ns > 0
    model.failure = None
    assert not execute(run, request(1)).responses[0].HasField("error")


def test_a_lost_model_fails_its_batch_and_ends_its_stream() -> None:
    run = runner(Doubler(ModelLostError("gone")))
    batches = [
        pb.Batch(id=number, members=[request(1), member(b"\xff")]).SerializeToString()
        for number in (1, 2)
    ]
    stream = Frames(*batches)
    with pytest.raises(ModelLostError, match="gone"):
        run.serve(stream, lambda: False)
    (executed,) = map(pb.Executed.FromString, stream.sent)
    assert executed.id == 1
    text = "Failed to process the request(s) for model instance 'm_0': gone"
    assert [each.error.message for each in executed.responses] == [
        text,
        "a batch member's head is no ModelInferRequest",
    ]


def test_an_unknown_exception_is_logged_and_not_sent(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        executed = execute(runner(Doubler(KeyError("secret"))), request(1))
    error = executed.responses[0].error
    assert (error.code, error.message, error.accepted) == (13, INTERNAL_MESSAGE, True)
    assert "secret" in caplog.text


def test_outputs_that_no_message_holds_fail_the_batch_and_not_the_instance() -> None:
    run = runner(Doubler(), max_batch_size=999)
    adapter_of(run).max_frame_bytes = 1000
    executed = execute(run, request(1, rows=200), request(1, rows=200))
    assert {each.error.message for each in executed.responses} == {
        "the outputs of a batch of model 'm' take more than 1000 bytes"
    }
    assert response_of(execute(run, request(1)).responses[0])


def test_requests_that_cannot_share_a_batch_fail_together() -> None:
    one = member(head(("x", "FP32", [1])), bytes(4))
    executed = execute(runner(Doubler(), max_batch_size=0), one, one)
    assert ["cannot share one" in response.error.message for response in executed.responses] == [
        True
    ] * 2


def test_responses_name_the_version_that_gave_them() -> None:
    assert adapter_of(runner(Doubler())).signature.model_version == "4"
