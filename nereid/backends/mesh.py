"""Requests of a loaded model to the mesh that serves it: inferences and control calls."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from nereid.core.errors import NereidError
    from nereid.core.wire.messages import InferRequest, InferResponse

RequestControl = Literal["cancel", "pause", "resume"]


class MeshRequest(Protocol):
    """A request to the mesh that has been submitted."""

    def send_control(self, kind: RequestControl) -> None:
        """Cancel the request, or pause or resume its responses. From any thread."""


class MeshClient(Protocol):
    """Submits models' requests to the mesh.

    Methods may be called from any thread. Callbacks run in another one, and must not block.
    """

    # Bytes that a model's process may share with the mesh for its requests, and seconds for which
    # it keeps free memory. `None` if it cannot share memory.
    memory: tuple[int, float] | None

    def infer(
        self, request: InferRequest, on_response: Callable[[InferResponse], None]
    ) -> MeshRequest:
        """Have a request executed; on_response receives all its responses.

        The receiver of a response in a shared-memory segment must call release_segment.
        """

    def release_segment(self, segment_name: str) -> None:
        """Release a segment whose response has been read."""

    def call_scheduler(
        self, method: str, message: bytes, on_reply: Callable[[bytes | NereidError], None]
    ) -> None:
        """Call a control method of the scheduler."""
