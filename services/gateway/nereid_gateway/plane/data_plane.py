"""Data plane of both fronts: infer(), control calls, buffers, and the state of the gateway.

The module knows no protocol of clients: fronts translate, the data plane decides whether the server
serves them. GatewayService makes the chain of steps behind infer().
"""

# layout: compiled

from __future__ import annotations

import asyncio
from functools import cache, partial
from typing import TYPE_CHECKING, Final, NamedTuple

from nereid.core.errors import Internal, NereidError
from nereid.core.wire.messages import ErrorStatus, InferRequest
from nereid.pb import kserve_pb2
from nereid_gateway.core.response_timings import TimedRequests
from nereid_gateway.plane.client_shm.regions import NO_REGIONS, Regions
from nereid_gateway.plane.control.control_queue import ControlQueue
from nereid_gateway.plane.decoding.turns import LoopTurns
from nereid_gateway.plane.timeline import NO_TIMELINE

if TYPE_CHECKING:
    from nereid.core.wire.messages import InferResponse
    from nereid_gateway.core.infer_step import Infer
    from nereid_gateway.plane.control.control import Control
    from nereid_gateway.plane.decoding.pool import DecoderPool
    from nereid_gateway.plane.slow_requests import SlowRequests
    from nereid_gateway.plane.timeline import GatewayTimeline
    from nereid_gateway.plane.tracing.request_traces import TracingStep
    from nereid_gateway.plane.upstream import Upstream

# Triton's list, in which clients look up the features that they may use.
EXTENSIONS: Final = (
    "classification",
    "sequence",
    "model_repository",
    "model_repository(unload_dependents)",
    "schedule_policy",
    "model_configuration",
    "system_shared_memory",
    "cuda_shared_memory",
    "binary_tensor_data",
    "parameters",
    "statistics",
    "trace",
    "logging",
)


# The scheduler returns this error if it has the model.
_MODEL_FOUND: Final = ErrorStatus(
    Internal.code, "the model was found, and its request was not sent"
)


class InferChain(NamedTuple):
    """Steps that each request passes, and the parts of the chain that others use."""

    # The first step's infer().
    infer: Infer
    tracing: TracingStep | None = None
    regions: Regions = NO_REGIONS
    # Requests whose responses say where their time went.
    timed: TimedRequests = TimedRequests.REQUESTED
    # `None` without a console.
    slow_requests: SlowRequests | None = None


class DataPlane:
    """Path of one gateway to the mesh."""

    def __init__(  # noqa: PLR0913 (one by keyword)
        self,
        chain: InferChain,
        upstream: Upstream,
        control: Control,
        server_name: str,
        decoders: DecoderPool,
        *,
        timeline: GatewayTimeline = NO_TIMELINE,
    ) -> None:
        """Join the parts."""
        self.timeline = timeline
        # The method is bound once here, because both fronts call it for each request.
        self.infer = chain.infer
        self.timed = chain.timed
        self.times_all = chain.timed is TimedRequests.ALWAYS
        # True if requests depend on headers that their protocol does not need.
        self.reads_headers = self.times_all or chain.tracing is not None
        # True if fronts have to set InferRequest.arrival.
        self.records_arrivals = self.reads_headers or timeline.records
        # Clients' shared memory.
        self.regions = chain.regions
        # Makes buffers for large messages.
        self.tensors = upstream.tensors
        self.control = control
        # Queues of clients' control calls, and of those about readiness.
        self.control_queue = ControlQueue()
        self.probe_queue = ControlQueue()
        # Decodes and encodes what is too large for the event loop.
        self.decoders = decoders
        self.turns = LoopTurns()
        # Phases of the shutdown: new requests are still served while draining, then refused.
        self.draining = False
        self.stopping = False
        self._upstream = upstream
        self._name = server_name

    def begin_drain(self) -> None:
        """Be neither live nor ready from now on."""
        self.draining = True

    def stop_accepting(self) -> None:
        """Refuse requests from now on; pending ones are finished."""
        self.stopping = True
        self._upstream.stop_accepting()

    @property
    def live(self) -> bool:
        """True until the gateway drains."""
        return not self.draining

    async def find_model(self, head: bytes, *, accepts_many: bool = False) -> ErrorStatus | None:
        """Return the error with which the scheduler would refuse any request for a model, if any.

        The scheduler is asked for the model that a head names, before its request is decoded at
        some expense. A model that is loading may have finished when this returns. accepts_many is
        as in the request.
        """
        refusal: asyncio.Future[ErrorStatus | None] = asyncio.get_running_loop().create_future()

        # An error in a body is reported after all others; see InferRequest.error_status.
        inquiry = InferRequest(0, head, [], error_status=_MODEL_FOUND, accepts_many=accepts_many)
        handle = self._upstream.infer(inquiry, partial(_on_found, refusal))
        try:
            return await refusal
        except asyncio.CancelledError:
            handle.cancel()
            raise

    def check_size(self, request: InferRequest) -> None:
        """Refuse a request that would be refused after its elements are counted.

        Raises:
            InvalidArgument: the request takes more memory than any request may.
        """
        self._upstream.size_of(request)

    async def ready(self) -> bool:
        """Return whether the mesh accepts requests.

        The gateway is connected and does not shut down, and the scheduler is ready.
        """
        if self.draining or not self._upstream.router.links_up:
            return False
        try:
            return await self.control.server_ready()
        except NereidError:
            return False

    def server_metadata(self) -> kserve_pb2.ServerMetadataResponse:
        """Return name, version and extensions of this server."""
        return kserve_pb2.ServerMetadataResponse(
            name=self._name, version=_version(), extensions=EXTENSIONS
        )


def _on_found(refusal: asyncio.Future[ErrorStatus | None], response: InferResponse) -> None:
    if not refusal.done():
        error_status = response.error
        refusal.set_result(None if error_status == _MODEL_FOUND else error_status)


@cache
def _version() -> str:
    from nereid.version import version  # noqa: PLC0415 - no part of a fast start

    return version()
