"""Data plane of both fronts: infer(), control calls, buffers, and the state of the gateway."""

# layout: compiled

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Final, NamedTuple

from nereid.core.errors import NereidError
from nereid.pb import kserve_pb2
from nereid_gateway.core.response_timings import TimedRequests
from nereid_gateway.plane.client_shm.regions import NO_REGIONS, Regions
from nereid_gateway.plane.control.control_queue import ControlQueue
from nereid_gateway.plane.request_decoding import RequestDecoding
from nereid_gateway.plane.timeline import NO_TIMELINE

if TYPE_CHECKING:
    from nereid_gateway.core.infer_step import Infer
    from nereid_gateway.plane.access_log import AccessLog
    from nereid_gateway.plane.control.control import Control
    from nereid_gateway.plane.decoding.pool import DecoderPool
    from nereid_gateway.plane.slow_requests import SlowRequests
    from nereid_gateway.plane.timeline import GatewayTimeline
    from nereid_gateway.plane.tracing.request_traces import Tracing
    from nereid_gateway.plane.upstream import Upstream

# Triton's list. Clients look up in it which features they may use.
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


class InferChain(NamedTuple):
    """First step of the chain that each request passes, and the parts that others need."""

    infer: Infer
    tracing: Tracing | None = None
    regions: Regions = NO_REGIONS
    timed: TimedRequests = TimedRequests.REQUESTED
    # None without a console.
    slow_requests: SlowRequests | None = None
    # True if fronts have to make a record of each request, not only of timed ones.
    records_all: bool = False
    access_log: AccessLog | None = None


class DataPlane:
    """The gateway's access to the mesh, for both fronts."""

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
        self.timeline = timeline
        # Looked up only once, because both fronts call it for each request.
        self.infer = chain.infer
        self.timed = chain.timed
        self.times_all = chain.timed is TimedRequests.ALWAYS
        self.records_all = chain.records_all
        self.regions = chain.regions
        self.tensors = upstream.tensors
        self.control = control
        # `probe_queue` has calls about readiness, `control_queue` all other control calls.
        self.control_queue = ControlQueue()
        self.probe_queue = ControlQueue()
        self.decoders = decoders
        self.decoding = RequestDecoding(upstream, chain.regions, decoders)
        # While `draining`, new requests are still served. While `stopping`, they are refused.
        self.draining = False
        self.stopping = False
        self._upstream = upstream
        self._name = server_name

    def begin_drain(self) -> None:
        """Report the gateway as neither live nor ready from now on."""
        self.draining = True

    def stop_accepting(self) -> None:
        """Refuse new requests from now on. Pending requests are finished."""
        self.stopping = True
        self._upstream.stop_accepting()

    @property
    def live(self) -> bool:
        """True until the gateway begins to drain."""
        return not self.draining

    async def ready(self) -> bool:
        """Return whether the gateway is connected and not draining, and the scheduler is ready."""
        if self.draining or not self._upstream.router.links_up:
            return False
        try:
            return await self.control.server_ready()
        except NereidError:
            return False

    def server_metadata(self) -> kserve_pb2.ServerMetadataResponse:
        """Return the name, the version and the extensions of this server."""
        return kserve_pb2.ServerMetadataResponse(
            name=self._name, version=_version(), extensions=EXTENSIONS
        )


@cache
def _version() -> str:
    from nereid.version import version  # noqa: PLC0415 - no part of a fast start

    return version()
