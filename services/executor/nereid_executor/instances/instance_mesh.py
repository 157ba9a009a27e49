"""The MeshClient of a model whose instance moves from one scheduler's session to the next."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from nereid.backends import MeshRequest
    from nereid.core.errors import NereidError
    from nereid.core.wire.messages import InferRequest, InferResponse
    from nereid_executor.instances.tenure import Tenure


class InstanceMesh:
    """A MeshClient that passes calls to the tenure's client, with the tenure's instance number."""

    def __init__(self, tenure: Tenure) -> None:
        self.memory = tenure.mesh.memory
        self._tenure = tenure

    def follow(self, tenure: Tenure) -> None:
        """Pass later calls to this tenure's client."""
        self._tenure = tenure

    def infer(
        self, request: InferRequest, on_response: Callable[[InferResponse], None]
    ) -> MeshRequest:
        """Send a request to be executed; see MeshClient."""
        # The model knows only the instance number with which it was loaded.
        if request.caller:
            request.caller = self._tenure.number
        if request.confined_caller:
            request.confined_caller = self._tenure.number
        return self._tenure.mesh.infer(request, on_response)

    def release_segment(self, segment_name: str) -> None:
        """Release a segment whose response has been read."""
        self._tenure.mesh.release_segment(segment_name)

    def call_scheduler(
        self, method: str, message: bytes, on_reply: Callable[[bytes | NereidError], None]
    ) -> None:
        """Call a control method of the scheduler."""
        self._tenure.mesh.call_scheduler(method, message, on_reply)
