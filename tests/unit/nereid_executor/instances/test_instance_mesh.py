"""Calls of a model whose instance changes hands."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from nereid.backends import MeshRequest
from nereid.core.errors import NereidError
from nereid.core.wire.messages import InferRequest, InferResponse
from nereid_executor.instances.instance_mesh import InstanceMesh
from nereid_executor.instances.tenure import (
    InstanceCallbacks,
    SchedulerEndpoint,
    Tenure,
)

CALLBACKS = InstanceCallbacks(lambda: None, lambda _, __: None, lambda _: None, lambda *_: None)


class Client:
    """A MeshClient that keeps what it is asked for."""

    memory: tuple[int, float] | None = (1, 2.0)

    def __init__(self) -> None:
        self.asked: list[object] = []

    def infer(
        self, request: InferRequest, on_response: Callable[[InferResponse], None]
    ) -> MeshRequest:
        self.asked.append(request.caller)
        return cast("MeshRequest", None)

    def release_segment(self, segment_name: str) -> None:
        self.asked.append(segment_name)

    def call_scheduler(
        self, method: str, message: bytes, on_reply: Callable[[bytes | NereidError], None]
    ) -> None:
        self.asked.append(method)


def test_calls_go_to_the_scheduler_that_has_the_instance_under_its_number() -> None:
    first, second = Client(), Client()
    mesh = InstanceMesh(Tenure(7, SchedulerEndpoint("unix:a"), CALLBACKS, first))
    assert mesh.memory == (1, 2.0)

    def call(caller: int) -> None:
        mesh.infer(InferRequest(0, b"", [], caller=caller), lambda _: None)

    call(7)
    mesh.follow(Tenure(3, SchedulerEndpoint("unix:b"), CALLBACKS, second))
    # The model knows the number that it was loaded with.
    call(7)
    # On behalf of no request.
    call(0)
    confined = InferRequest(0, b"", [], confined_caller=7)
    mesh.infer(confined, lambda _: None)
    assert (confined.caller, confined.confined_caller) == (0, 3)
    mesh.release_segment("s")
    mesh.call_scheduler("ModelReady", b"", lambda _: None)
    assert first.asked == [7]
    assert second.asked == [3, 0, 0, "s", "ModelReady"]
