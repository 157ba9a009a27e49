"""Step that writes outputs to clients' shared memory before the front responds.

A request's regions stay registered until its last response. For fronts, an output in a region is an
empty payload.
"""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from nereid.bounded_cache import BoundedCache
from nereid.core.errors import INTERNAL_MESSAGE, Internal, NereidError
from nereid.core.wire.messages import InferResponse, error_status_of
from nereid.pb import kserve_pb2
from nereid_gateway.plane.client_shm.regions import SYSTEM

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nereid_gateway.core.client_request import ClientRequest
    from nereid_gateway.core.request_handle import RequestHandle
    from nereid_gateway.plane.client_shm.regions import Placement, Region, RegionUse

    OnResponse = Callable[[InferResponse], None]

_log = logging.getLogger(__name__)

# Larger outputs are written in a thread, but only to system memory and only for the last response.
_WRITTEN_AT_ONCE_BYTES: Final = 1 << 20
_MAX_HEADS: Final = 2048
_MAX_HEAD_BYTES: Final = 8192


class RegionOutputs:
    """Submits requests. If a request names regions of shared memory, writes its outputs to them."""

    def __init__(
        self,
        infer: Callable[[ClientRequest, OnResponse], RequestHandle],
        max_heads: int = _MAX_HEADS,
    ) -> None:
        self._infer = infer
        self._threads = ThreadPoolExecutor(1, "region-outputs")
        self._names: BoundedCache[bytes, tuple[str, ...]] = BoundedCache(max_heads, _MAX_HEAD_BYTES)

    def infer(self, request: ClientRequest, on_response: OnResponse) -> RequestHandle:
        """Submit a request as `DataPlane.infer` does."""
        if request.region_use is None:
            return self._infer(request, on_response)
        request_with_regions = _RequestWithRegions(self, request.region_use, on_response)
        request_with_regions.submitted = self._infer(request, request_with_regions.on_response)
        return request_with_regions

    def write_later(
        self, write: Callable[[], InferResponse], on_written: Callable[[InferResponse], None]
    ) -> None:
        """Call write in a thread, then on_written with its response."""
        writing = asyncio.get_running_loop().run_in_executor(self._threads, write)

        def on_done(done: asyncio.Future[InferResponse]) -> None:
            if not done.cancelled():
                on_written(done.result())

        writing.add_done_callback(on_done)

    def output_names(self, head: bytes) -> tuple[str, ...]:
        """Return the names of a response's outputs, in the order of its payloads."""
        names = self._names.get(head)
        if names is None:
            message = kserve_pb2.ModelInferResponse.FromString(head)
            names = tuple(output.name for output in message.outputs)
            self._names.remember(head, names)
        return names


class _RequestWithRegions:
    """Request that keeps its regions until its last response or its cancellation.

    A thread may still write after a cancellation. Each response overwrites the outputs of the
    previous one.
    """

    __slots__ = (
        "_cancelled",
        "_on_response",
        "_outputs",
        "_placements",
        "_regions",
        "_writing",
        "submitted",
    )

    def __init__(self, outputs: RegionOutputs, use: RegionUse, on_response: OnResponse) -> None:
        self._outputs = outputs
        self._on_response = on_response
        self._placements = use.placements
        self._regions: list[Region] = use.regions
        self.submitted: RequestHandle | None = None
        # True while a thread writes the outputs of the last response.
        self._writing = self._cancelled = False
        for region in self._regions:
            region.begin_use()

    def on_response(self, response: InferResponse) -> None:
        if not self._placements or response.error is not None or not response.head:
            self._deliver(response)
            return
        names = self._outputs.output_names(response.head)
        write = partial(_write_or_fail, response, names, self._placements)
        sizes: list[Any] = response.payloads
        if (
            response.more
            or sum(map(len, sizes)) <= _WRITTEN_AT_ONCE_BYTES
            or any(region.registration.kind != SYSTEM for region in self._regions)
        ):
            self._deliver(write())
            return
        self._writing = True
        self._outputs.write_later(write, self._on_written)

    def cancel(self) -> None:
        if self.submitted is not None:
            self.submitted.cancel()
        self._cancelled = True
        if not self._writing:
            self._release()

    def set_flow(self, *, paused: bool) -> None:
        if self.submitted is not None:
            self.submitted.set_flow(paused=paused)

    def _release(self) -> None:
        regions, self._regions, self._placements = self._regions, [], []
        for region in regions:
            region.end_use()

    def _deliver(self, response: InferResponse) -> None:
        if not response.more:
            self._release()
        self._on_response(response)

    def _on_written(self, response: InferResponse) -> None:
        self._writing = False
        if self._cancelled:
            self._release()
        else:
            self._deliver(response)


def _write_or_fail(
    response: InferResponse, names: Sequence[str], placements: Sequence[Placement]
) -> InferResponse:
    try:
        return _write(response, names, placements)
    except NereidError as error:
        return InferResponse(response.id, error=error_status_of(error), more=response.more)
    except Exception:
        _log.exception("outputs could not be written to a client's shared memory")
        error_status = error_status_of(Internal(INTERNAL_MESSAGE))
        return InferResponse(response.id, error=error_status, more=response.more)


def _write(
    response: InferResponse, names: Sequence[str], placements: Sequence[Placement]
) -> InferResponse:
    # The list is copied, because identical requests share one response.
    payloads: list[Any] = list(response.payloads)
    for name, region, tensor_range in placements:
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
    return response.with_payloads(payloads)
