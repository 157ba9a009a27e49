"""What both fronts are given: infer(), control calls, buffers, and the state of the gateway.

Knows no protocol of clients: fronts translate, this decides whether the server is there for them.
GatewayService makes the chain of steps behind infer().
"""

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

if TYPE_CHECKING:
    from nereid.core.wire.messages import InferResponse
    from nereid_gateway.core.infer_step import Infer
    from nereid_gateway.plane.control.control import Control
    from nereid_gateway.plane.decoding.pool import DecoderPool
    from nereid_gateway.plane.slow_requests import SlowRequests
    from nereid_gateway.plane.timeline import GatewayTimeline
    from nereid_gateway.plane.tracing.request_traces import TracingStep
    from nereid_gateway.plane.upstream import Upstream

# Triton's list: clients look up here which features they may use.
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


# Comes back from the scheduler if it has the model.
_MODEL_FOUND: Final = ErrorStatus(
    Internal.code, "the model was found, and its request was not sent"
)


class InferChain(NamedTuple):
    """The steps that each request passes, and what else is to be known of them."""

    # Of the first step.
    infer: Infer
    tracing: TracingStep | None = None
    regions: Regions = NO_REGIONS
    # Whose responses say where their time went.
    timed: TimedRequests = TimedRequests.REQUESTED
    # None: there is no console.
    slow_requests: SlowRequests | None = None


class DataPlane:
    """One gateway's path to the mesh."""

    def __init__(  # noqa: PLR0913 (one by keyword)
        self,
        chain: InferChain,
        upstream: Upstream,
        control: Control,
        server_name: str,
        decoders: DecoderPool,
        *,
        timeline: GatewayTimeline | None = None,
    ) -> None:
        """timeline: None: none is recorded."""
        self.timeline = timeline
        # Bound here once: both fronts call it for each request.
        self.infer = chain.infer
        self.timed = chain.timed
        self.times_all = chain.timed is TimedRequests.ALWAYS
        # Requests depend on headers that their protocol does not need.
        self.reads_headers = self.times_all or chain.tracing is not None
        # Fronts set InferRequest.arrival.
        self.records_arrivals = self.reads_headers or timeline is not None
        # Clients' shared memory.
        self.regions = chain.regions
        # Makes buffers for large messages.
        self.tensors = upstream.tensors
        self.control = control
        # Where clients' control calls wait for their turn; those about readiness for theirs.
        self.control_queue = ControlQueue()
        self.probe_queue = ControlQueue()
        # For what may not be decoded, or encoded, where it arrives.
        self.decoders = decoders
        self.turns = LoopTurns()
        # The server is shutting down: what comes is still served for a while, then refused.
        self.draining = False
        self.stopping = False
        self._upstream = upstream
        self._name = server_name

    def begin_drain(self) -> None:
        """Be neither live nor ready from now on."""
        self.draining = True

    def stop_accepting(self) -> None:
        """Refuse requests from now on; those that are pending are finished."""
        self.stopping = True
        self._upstream.stop_accepting()

    @property
    def live(self) -> bool:
        """Whether this gateway can serve."""
        return not self.draining

    async def find_model(self, head: bytes, *, accepts_many: bool = False) -> ErrorStatus | None:
        """Ask the scheduler for the model that a head names, before its request is decoded at some
        expense: the error with which it would refuse any request. None: it has the model, which may
        have finished loading meanwhile. accepts_many: as of the request.
        """
        found: asyncio.Future[ErrorStatus | None] = asyncio.get_running_loop().create_future()

        # An error in a body is reported after all others; see InferRequest.error_status.
        asked = InferRequest(0, head, [], error_status=_MODEL_FOUND, accepts_many=accepts_many)
        handle = self._upstream.infer(asked, partial(_on_found, found))
        try:
            return await found
        except asyncio.CancelledError:
            handle.cancel()
            raise

    def check_size(self, request: InferRequest) -> None:
        """Refuse a request that would be refused after its elements are counted.

        Raises:
            InvalidArgument: it takes more than any request may.
        """
        self._upstream.size_of(request)

    async def ready(self) -> bool:
        """Whether the mesh takes requests: connected, not shutting down, and the scheduler says
        that it is ready.
        """
        if self.draining or not self._upstream.router.links_up:
            return False
        try:
            return await self.control.server_ready()
        except NereidError:
            return False

    def server_metadata(self) -> kserve_pb2.ServerMetadataResponse:
        """Name, version and extensions of this server."""
        return kserve_pb2.ServerMetadataResponse(
            name=self._name, version=_version(), extensions=EXTENSIONS
        )


def _on_found(found: asyncio.Future[ErrorStatus | None], response: InferResponse) -> None:
    if not found.done():
        error_status = response.error
        found.set_result(None if error_status == _MODEL_FOUND else error_status)


@cache
def _version() -> str:
    from nereid.version import version  # noqa: PLC0415 - no part of a fast start

    return version()
