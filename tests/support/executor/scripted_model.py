"""A model that responds to requests as a test says, and its instance's stream."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from threading import Event
from typing import Any

from google.protobuf import text_format

from nereid.backends import BatchUpdate, Capabilities, InstanceSpec, Request, Response
from nereid.core.errors import Unavailable
from nereid.core.wire.messages import ErrorStatus
from nereid.pb import kserve_pb2, model_config_pb2
from nereid.pb import nereid_pb2 as pb
from nereid_executor.batch.runner import Runner

SPEC = InstanceSpec(
    config=text_format.Parse(
        'name: "m" output { name: "Y" data_type: TYPE_UINT8 dims: -1 }',
        model_config_pb2.ModelConfig(),
    ),
    version=1,
    version_path=Path("/nowhere"),
    name="m_0_0",
)
DECOUPLED_SPEC = replace(
    SPEC,
    config=text_format.Parse(
        "model_transaction_policy { decoupled: true }",
        model_config_pb2.ModelConfig.FromString(SPEC.config.SerializeToString()),
    ),
)


class Model:
    """Sends the updates that a test scripts; each makes its descriptor readable."""

    capabilities = Capabilities(executes_requests=True)

    def __init__(self, *, execution_timeout_s: float | None = None) -> None:
        self.execution_timeout_s = execution_timeout_s
        self.begun: dict[int, list[Request]] = {}
        self.controls: list[tuple[int, int, int]] = []
        self.seen = 0
        self.given_up = False
        self.refusal: Unavailable | None = None
        self.updates: deque[BatchUpdate | Exception] = deque()
        self.event = os.eventfd(0, os.EFD_NONBLOCK)

    def send_update(self, update: BatchUpdate | Exception) -> None:
        """Now, or as soon as it has a batch."""
        self.updates.append(update)
        if self.begun:
            os.eventfd_write(self.event, 1)

    def file_descriptors(self) -> Sequence[int]:
        return (self.event,)

    def begin_batch(self, batch: int, requests: Sequence[Request]) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.begun[batch] = [*requests]
        if self.updates:
            os.eventfd_write(self.event, 1)

    def control_request(self, batch: int, member: int, kind: int) -> None:
        self.controls.append((batch, member, kind))

    def collect_updates(self, ready: Collection[int]) -> Iterator[BatchUpdate]:
        assert self.event in ready
        os.eventfd_read(self.event)
        while self.updates:
            update = self.updates.popleft()
            if isinstance(update, Exception):
                raise update
            yield update

    def may_have_begun(self, batch: int) -> bool:
        return batch <= self.seen

    def terminate(self) -> None:
        self.given_up = True

    def restart(self, stopping: Event) -> bool:
        return not stopping.is_set()

    def close(self) -> None:
        os.close(self.event)


class Stream:
    """An instance's stream: batches in, frames of responses out."""

    def __init__(self, *batches: pb.Batch) -> None:
        self.incoming = [each.SerializeToString() for each in batches]
        self.sent: list[pb.Executed] = []
        self.event = os.eventfd(1, os.EFD_NONBLOCK)
        self.ended = False

    @property
    def has_input(self) -> bool:
        return bool(self.incoming)

    def fileno(self) -> int:
        return self.event

    def receive(self) -> bytes | None:
        raise AssertionError("it polls")

    def read_messages(self) -> list[bytes]:
        messages, self.incoming = self.incoming, []
        return messages

    def send(self, message: bytes) -> None:
        self.sent.append(pb.Executed.FromString(message))


def member(data: bytes = b"ab", size: int | None = None, **more: Any) -> pb.BatchMember:
    request = kserve_pb2.ModelInferRequest(model_name="m")
    request.inputs.add(name="X", datatype="UINT8", shape=[len(data) if size is None else size])
    made = pb.BatchMember(head=request.SerializeToString(), **more)
    made.payloads.add(inline=data)
    return made


_numbers = count(1)


def batch(*members: pb.BatchMember, number: int = 0) -> pb.Batch:
    """number 0: greater than those before."""
    return pb.Batch(id=number or next(_numbers), members=members)


def response(place: int, data: Any = b"y", *, more: bool = False) -> Response:
    return Response(place, more, None, b"head", (data,))


def failed(place: int, *, more: bool = False) -> Response:
    return Response(place, more, ErrorStatus(13, "no"))


def begin(runner: Runner, what: pb.Batch) -> list[pb.Executed]:
    sent: list[bytes] = []
    runner.on_frame(what.SerializeToString(), sent.append)
    return [*map(pb.Executed.FromString, sent)]


def collect(runner: Runner, model: Model, *updates: BatchUpdate) -> list[pb.Executed]:
    for each in updates:
        model.send_update(each)
    sent: list[bytes] = []
    runner.collect({model.event}, sent.append)
    return [*map(pb.Executed.FromString, sent)]


def responses_of(executed: pb.Executed) -> list[tuple[int, Any, bool]]:
    """Each response's place, its error or payloads, and whether another follows."""
    return [
        (each.id, each.error.message or [one.inline for one in each.payloads], each.more)
        for each in executed.responses
    ]
