"""Writes outputs to clients' shared memory, before the front responds.

A step in front of the upstream where clients' shared memory is allowed, and otherwise not there.
Knows regions, no protocol: to the fronts, an output in a region is an empty payload.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from nereid.core.bounded_cache import BoundedCache
from nereid.core.errors import Internal, NereidError
from nereid.core.messages import InferResponse, error_status_of
from nereid.pb import kserve_pb2

if TYPE_CHECKING:
    from collections.abc import Callable

    from nereid.core.messages import InferRequest
    from nereid.services.gateway.client_shm.regions import Placement, Regions
    from nereid.services.gateway.infer_chain import RequestHandle

    OnResponse = Callable[[InferResponse], None]

_MAX_HEADS: Final = 2048
_MAX_HEAD_BYTES: Final = 8192


class RegionOutputs:
    """Submits requests, some of which want outputs in shared memory."""

    def __init__(
        self,
        regions: Regions,
        infer: Callable[[InferRequest, OnResponse], RequestHandle],
        max_heads: int = _MAX_HEADS,
    ) -> None:
        self._regions = regions
        self._infer = infer
        self._names: BoundedCache[bytes, tuple[str, ...]] = BoundedCache(max_heads, _MAX_HEAD_BYTES)

    def infer(self, request: InferRequest, on_response: OnResponse) -> RequestHandle:
        """As DataPlane.infer."""
        if not request.placements:
            return self._infer(request, on_response)
        placing = _PlacingRequest(self, request, on_response)
        placing.submitted = self._infer(request, placing.on_response)
        return placing

    def output_names(self, head: bytes) -> tuple[str, ...]:
        """The outputs of a response, in the order of its payloads."""
        names = self._names.get(head)
        if names is None:
            message = kserve_pb2.ModelInferResponse.FromString(head)
            names = tuple(output.name for output in message.outputs)
            self._names.remember(head, names)
        return names

    def release_regions(self, placements: list[Placement]) -> None:
        for _, region, _ in placements:
            self._regions.release_region(region)


class _PlacingRequest:
    """One request with outputs in shared memory. It holds its regions until its last response; each
    response overwrites the one before.
    """

    __slots__ = ("_on_response", "_outputs", "_placements", "submitted")

    def __init__(
        self, outputs: RegionOutputs, request: InferRequest, on_response: OnResponse
    ) -> None:
        self._outputs = outputs
        self._on_response = on_response
        self._placements: list[Placement] = request.placements or []
        self.submitted: RequestHandle | None = None
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
        """The client disconnected: nothing will be written."""
        if self.submitted is not None:
            self.submitted.cancel()
        self._release()

    def set_flow(self, *, paused: bool) -> None:
        if self.submitted is not None:
            self.submitted.set_flow(paused=paused)

    def _release(self) -> None:
        placements, self._placements = self._placements, []
        self._outputs.release_regions(placements)

    def _write(self, response: InferResponse) -> InferResponse:
        names = self._outputs.output_names(response.head)
        # A copy: identical requests share one response.
        payloads: list[Any] = list(response.payloads)
        for name, region, tensor_range in self._placements:
            if name not in names:
                continue
            position = names.index(name)
            size_bytes = len(payloads[position])
            if size_bytes > tensor_range.size_bytes:
                raise Internal(
                    f"shared memory size specified with the request for output '{name}'"
                    f" ({tensor_range.size_bytes} bytes) should be at least {size_bytes} bytes to"
                    " hold the results",
                    accepted=True,
                )
            region.write(tensor_range, payloads[position])
            payloads[position] = b""
        return InferResponse(response.id, response.head, payloads, more=response.more)
