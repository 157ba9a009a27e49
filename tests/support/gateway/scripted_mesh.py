"""The mesh behind one step of the gateway's data plane: it responds when the test says so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Self

from nereid.core.wire.messages import InferRequest, InferResponse


class ScriptedMesh:
    """An InferStep for one request at a time; counts what was called, and `told` keeps responses
    that reached the client.
    """

    def __init__(self) -> None:
        self.delivered: list[InferResponse] = []
        # The last request's; to be called with its responses.
        self.on_response: Callable[[InferResponse], None] = _nobody
        self.cancelled = 0
        self.flows: list[bool] = []

    def infer(self, _request: InferRequest, on_response: Callable[[InferResponse], None]) -> Self:
        self.on_response = on_response
        return self

    def cancel(self) -> None:
        self.cancelled += 1

    def set_flow(self, *, paused: bool) -> None:
        self.flows.append(paused)


def _nobody(response: InferResponse) -> None:
    raise AssertionError(response)
