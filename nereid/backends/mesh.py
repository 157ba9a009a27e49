"""Requests that a loaded model sends to the mesh that serves it: inferences and control calls."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from nereid.core.errors import NereidError
    from nereid.core.wire.messages import InferRequest, InferResponse

RequestControl = Literal["cancel", "pause", "resume"]


class MeshRequest(Protocol):
    """A request that a model has submitted to the mesh."""

    def send_control(self, kind: RequestControl) -> None:
        """Cancel the request, or pause or resume its responses. Any thread may call this."""


class MeshClient(Protocol):
    """Client that submits models' requests to the mesh. Any thread may call it.

    Callbacks run in another thread and must not block.
    """

    # Bytes that a model's process may share with the mesh, and seconds for which the process keeps
    # unused memory. `None` if the process cannot share memory.
    memory: tuple[int, float] | None

    def infer(
        self, request: InferRequest, on_response: Callable[[InferResponse], None]
    ) -> MeshRequest:
        """Submit a request; on_response receives all its responses.

        If a response is in a segment, its receiver must call release_segment.
        """

    def release_segment(self, segment_name: str) -> None:
        """Release a segment after its response has been read."""

    def call_scheduler(
        self, method: str, message: bytes, on_reply: Callable[[bytes | NereidError], None]
    ) -> None:
        """Call a control method of the scheduler; on_reply receives the reply or the error."""
