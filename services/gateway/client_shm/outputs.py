"""Outputs on their way into clients' shared memory: written before the reply tells that they are.

Stands before the way to the mesh where clients' shared memory is allowed, and nowhere else. Knows
regions, no protocol: an output that went to its region is an empty payload to the fronts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from nereid.core.errors import Internal, NereidError
from nereid.core.messages import InferResponse, error_status_of
from nereid.pb import kserve_pb2

if TYPE_CHECKING:
    from collections.abc import Callable

    from nereid.core.messages import InferRequest
    from nereid.services.gateway.client_shm.regions import Placement, Regions
    from nereid.services.gateway.infer_chain import RequestHandle

    OnResponse = Callable[[InferResponse], None]

_MOST_HEADS: Final = 2048
_LARGEST_REMEMBERED_HEAD_BYTES: Final = 8192


class Outputs:
    """The way to the mesh, for requests of which some may want outputs in shared memory."""

    def __init__(
        self, regions: Regions, infer: Callable[[InferRequest, OnResponse], RequestHandle]
    ) -> None:
        self._regions = regions
        self._infer = infer
        self._names: dict[bytes, tuple[str, ...]] = {}

    def infer(self, request: InferRequest, on_response: OnResponse) -> RequestHandle:
        """As DataPlane.infer."""
        if not request.placements:
            return self._infer(request, on_response)
        placed = _Placed(self, request, on_response)
        placed.under_way = self._infer(request, placed.on_response)
        return placed

    def names(self, head: bytes) -> tuple[str, ...]:
        """The outputs of an answer, in the order of its payloads."""
        names = self._names.get(head)
        if names is None:
            message = kserve_pb2.ModelInferResponse.FromString(head)
            names = tuple(output.name for output in message.outputs)
            if len(head) <= _LARGEST_REMEMBERED_HEAD_BYTES:
                if len(self._names) >= _MOST_HEADS:
                    self._names.clear()
                self._names[head] = names
        return names

    def release(self, placements: list[Placement]) -> None:
        for _, region, _ in placements:
            self._regions.release(region)


class _Placed:
    """One request with outputs in shared memory. It holds its regions until its last answer; each
    answer overwrites the one before.
    """

    __slots__ = ("_on_response", "_outputs", "_placements", "under_way")

    def __init__(self, outputs: Outputs, request: InferRequest, on_response: OnResponse) -> None:
        self._outputs = outputs
        self._on_response = on_response
        self._placements: list[Placement] = request.placements or []
        self.under_way: RequestHandle | None = None
        for _, region, _ in self._placements:
            region.users += 1

    def on_response(self, response: InferResponse) -> None:
        try:
            if response.error is None and response.head:
                response = self._write(response)
        except NereidError as error:
            response = InferResponse(response.id, error=error_status_of(error), more=response.more)
        finally:
            if not response.more:
                self._release()
        self._on_response(response)

    def cancel(self) -> None:
        """Nobody waits for the answer: nothing will be written."""
        if self.under_way is not None:
            self.under_way.cancel()
        self._release()

    def set_flow(self, *, paused: bool) -> None:
        if self.under_way is not None:
            self.under_way.set_flow(paused=paused)

    def _release(self) -> None:
        placements, self._placements = self._placements, []
        self._outputs.release(placements)

    def _write(self, response: InferResponse) -> InferResponse:
        names = self._outputs.names(response.head)
        # The list may be another's as well: identical requests share one answer.
        payloads: list[Any] = list(response.payloads)
        for name, region, place in self._placements:
            if name not in names:
                continue
            position = names.index(name)
            size_bytes = len(payloads[position])
            if size_bytes > place.size_bytes:
                raise Internal(
                    f"shared memory size specified with the request for output '{name}'"
                    f" ({place.size_bytes} bytes) should be at least {size_bytes} bytes to hold"
                    " the results",
                    accepted=True,
                )
            region.write(place, payloads[position])
            payloads[position] = b""
        return InferResponse(response.id, response.head, payloads, more=response.more)
