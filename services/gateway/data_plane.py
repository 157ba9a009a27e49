"""What both fronts are given: infer(), the control calls, and how the gateway itself is.

Knows no protocol of clients. Fronts translate, this decides whether the server is there for them.
"""

from __future__ import annotations

from importlib import metadata
from typing import TYPE_CHECKING, Final, Protocol

from nereid.core.errors import NereidError
from nereid.pb import kserve_pb2
from nereid.services.gateway.client_shm.regions import NO_REGIONS, Regions

if TYPE_CHECKING:
    from collections.abc import Callable

    from nereid.core.messages import InferRequest, InferResponse
    from nereid.services.gateway.control import Control
    from nereid.services.gateway.tracing.request_traces import Tracing
    from nereid.services.gateway.upstream import Upstream

try:
    VERSION = metadata.version("nereid-mesh")
except metadata.PackageNotFoundError:
    # Run from a source tree that nobody installed.
    VERSION = "0"

# Triton's list: clients look up here what they may ask for.
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


class UnderWay(Protocol):
    """A request that was sent on its way."""

    def cancel(self) -> None:
        """The client is gone: no answer will be delivered. Harmless after the answer."""

    def set_flow(self, *, paused: bool) -> None:
        """The client cannot keep up with the answers, or it can again. Harmless after the last."""


class DataPlane:
    """One gateway's way to the mesh."""

    def __init__(self, upstream: Upstream, control: Control, server_name: str) -> None:
        self._upstream = upstream
        self.control = control
        self._name = server_name
        # Set when the server is told to end: what is under way is finished.
        self.draining = False
        # Stands before infer where requests are traced; None: nothing is.
        self.tracing: Tracing | None = None
        # Clients' shared memory; the same for both fronts.
        self.regions: Regions = NO_REGIONS
        self.shared_tensors = upstream.shared_tensors
        # Bound once: the hot path of both fronts.
        self.infer: Callable[[InferRequest, Callable[[InferResponse], None]], UnderWay] = (
            upstream.submit
        )

    @property
    def live(self) -> bool:
        """Whether this gateway can serve."""
        return not self.draining

    async def ready(self) -> bool:
        """Whether the mesh takes requests: linked, not ending, and ready by the scheduler."""
        if self.draining or not self._upstream.up:
            return False
        try:
            return await self.control.server_ready()
        except NereidError:
            return False

    def server_metadata(self) -> kserve_pb2.ServerMetadataResponse:
        """Name, version and extensions of this server."""
        return kserve_pb2.ServerMetadataResponse(
            name=self._name, version=VERSION, extensions=EXTENSIONS
        )
