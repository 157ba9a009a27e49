"""The mesh behind one step of the gateway's request path: it answers when the test says so."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Callable

    from nereid.core.messages import InferRequest, InferResponse


class ScriptedMesh:
    """Takes one request at a time, and keeps what is asked of it and what the client is told."""

    def __init__(self) -> None:
        self.told: list[InferResponse] = []
        # The last request's; to be called with its answers.
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
