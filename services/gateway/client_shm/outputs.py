"""Writes outputs to clients' shared memory, before the front responds, and keeps the regions that a
request names registered until its last response.

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
    from nereid.services.gateway.client_shm.regions import Region, RegionUse
    from nereid.services.gateway.infer_chain import RequestHandle

    OnResponse = Callable[[InferResponse], None]

_MAX_HEADS: Final = 2048
_MAX_HEAD_BYTES: Final = 8192


class RegionOutputs:
    """Submits requests, some of which name regions of shared memory."""

    def __init__(
        self,
        infer: Callable[[InferRequest, OnResponse], RequestHandle],
        max_heads: int = _MAX_HEADS,
    ) -> None:
        self._infer = infer
        self._names: BoundedCache[bytes, tuple[str, ...]] = BoundedCache(max_heads, _MAX_HEAD_BYTES)

    def infer(self, request: InferRequest, on_response: OnResponse) -> RequestHandle:
        """As DataPlane.infer."""
        if request.region_use is None:
            return self._infer(request, on_response)
        using = _UsingRequest(self, request.region_use, on_response)
        using.submitted = self._infer(request, using.on_response)
        return using

    def output_names(self, head: bytes) -> tuple[str, ...]:
        """The outputs of a response, in the order of its payloads."""
        names = self._names.get(head)
        if names is None:
            message = kserve_pb2.ModelInferResponse.FromString(head)
            names = tuple(output.name for output in message.outputs)
            self._names.remember(head, names)
        return names


class _UsingRequest:
    """One request that names regions. It is a user of them until its last response, or until it is
    cancelled: then nothing is read or written any more. Each response overwrites the one before.
    """

    __slots__ = ("_on_response", "_outputs", "_placements", "_regions", "submitted")

    def __init__(self, outputs: RegionOutputs, use: RegionUse, on_response: OnResponse) -> None:
        self._outputs = outputs
        self._on_response = on_response
        self._placements = use.placements
        self._regions: list[Region] = use.regions
        self.submitted: RequestHandle | None = None
        for region in self._regions:
            region.begin_use()

    def on_response(self, response: InferResponse) -> None:
        try:
            if self._placements and response.error is None and response.head:
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
        regions, self._regions, self._placements = self._regions, [], []
        for region in regions:
            region.end_use()

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
