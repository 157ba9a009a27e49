"""Models with implicit state that add up, executed as arrays and request by request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from google.protobuf import text_format

from nereid.backends import EMPTY_DESCRIPTION, BatchUpdate, Request, Response
from nereid.core.errors import Internal
from nereid.core.tensors.tensors import Array
from nereid.core.wire.messages import ErrorStatus
from nereid.pb import kserve_pb2, model_config_pb2
from nereid.pb import nereid_pb2 as pb
from nereid_executor.batch.runner import Runner
from tests.support.executor.instances import execute
from tests.support.executor.scripted_model import SPEC, Model, begin
from tests.support.models.onnx_models import head

CONFIG = """
name: "m" max_batch_size: 4
input { name: "x" data_type: TYPE_FP32 dims: 1 }
output { name: "y" data_type: TYPE_FP32 dims: 1 }
sequence_batching { %s state {
  input_name: "s" output_name: "s_out" data_type: TYPE_FP32 dims: -1
} }
"""
DEFERRED = 100


def config_of(more: str = "") -> model_config_pb2.ModelConfig:
    return text_format.Parse(CONFIG % more, model_config_pb2.ModelConfig())


class ArraySum:
    """y and s_out are s plus x; fails if an x is negative."""

    description = EMPTY_DESCRIPTION

    def execute(self, inputs: dict[str, Array], outputs: Sequence[str]) -> Sequence[Array]:
        if (inputs["x"] < 0).any():
            raise Internal("negative")
        total = inputs["s"] + inputs["x"]
        by_name = {"y": total[:, :1], "s_out": total}
        return [by_name[name] for name in outputs]

    def close(self) -> None:
        """Do nothing."""


class RequestSum(Model):
    """The same, request by request; and it defers its response if x is DEFERRED."""

    def begin_batch(self, batch: int, requests: Sequence[Request]) -> None:
        super().begin_batch(batch, requests)
        values = [value_of(request) for request in requests]
        responses = [
            self.respond(place, request)
            for place, request in enumerate(requests)
            if values[place] != DEFERRED
        ]
        self.send_update(BatchUpdate(batch, responses, ready_for_next=True))

    def respond(self, place: int, request: Request) -> Response:
        if value_of(request) < 0:
            return Response(place, False, ErrorStatus(13, "negative"))
        state: Any = request.tensors[1]
        total = (np.frombuffer(state, np.float32) + np.float32(value_of(request))).tobytes()
        message = kserve_pb2.ModelInferResponse(model_name="m")
        for name in ("y", "s_out"):
            message.outputs.add(name=name, datatype="FP32", shape=request.spec.inputs[1][2])
        return Response(place, False, None, message.SerializeToString(), [total, total])


def value_of(request: Request) -> int:
    raw: Any = request.tensors[0]
    return int(np.frombuffer(raw, np.float32)[0])


class ArraySite:
    """A runner of a model that adds up."""

    def __init__(self) -> None:
        self.runner = Runner(replace(SPEC, config=config_of()), ArraySum())

    def run(self, *members: pb.BatchMember) -> pb.Executed:
        return execute(self.runner, *members)

    def export(self, *slots: int) -> list[tuple[int, bytes]]:
        number = self.runner.received.last_read + 1
        (executed,) = begin(self.runner, pb.Batch(id=number, exported_slots=slots))
        assert executed.id == number
        assert not executed.responses
        return states_of(executed)

    def close(self) -> None:
        """Do nothing."""


class RequestSite(ArraySite):
    """The same of one that executes requests."""

    def __init__(self) -> None:
        self.model = RequestSum()
        self.runner = Runner(replace(SPEC, config=config_of()), self.model)

    def close(self) -> None:
        self.model.close()


def states_of(executed: pb.Executed) -> list[tuple[int, bytes]]:
    return [(each.slot, each.state) for each in executed.states]


def state(*values: int) -> bytes:
    message = pb.StateTensors()
    message.tensors.add(shape=[len(values)], data=np.array(values, np.float32).tobytes())
    return message.SerializeToString()


def member(value: float, slot: int = 1, flag: str = "", **fields: Any) -> pb.BatchMember:
    request = pb.BatchMember(head=head(("x", "FP32", [1, 1])), sequence_slot=slot, **fields)
    request.payloads.add(inline=np.full(1, value, np.float32).tobytes())
    if flag:
        request.parameters[f"sequence_{flag}"].bool_param = True
    return request


def asked(value: int, slot: int = 1, flag: str = "") -> pb.BatchMember:
    """Return a request whose response comes with its sequence's state."""
    return member(value, slot, flag, returns_state=True)


def of(which: int | str, request: pb.BatchMember) -> pb.BatchMember:
    """A request of this sequence."""
    if isinstance(which, str):
        request.parameters["sequence_id"].string_param = which
    else:
        request.parameters["sequence_id"].int64_param = which
    return request


def malformed(request: pb.BatchMember) -> pb.BatchMember:
    del request.payloads[:]
    return request


def restored(request: pb.BatchMember, state: bytes, *again: pb.BatchMember) -> pb.BatchMember:
    request.restore.SetInParent()
    request.restore.state = state
    request.restore.requests.extend(again)
    return request


def outcomes(executed: pb.Executed) -> list[float | str]:
    """Return the value or the error of each response."""
    return [
        each.error.message or float(np.frombuffer(each.payloads[0].inline, np.float32)[0])
        for each in executed.responses
    ]


def lost(which: int | str, cause: str) -> str:
    return (
        f"the state of sequence {which} of model 'm' is lost: {cause}; begin it again with a"
        " request that has the START flag"
    )


def not_here(which: int | str = 0) -> str:
    return lost(which, "its instance does not have it")


def not_restored(which: int | str = 0) -> str:
    return lost(which, "it could not be restored")
