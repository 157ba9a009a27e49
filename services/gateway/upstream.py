"""The last step of the data plane, in front of the scheduler: refuses what exceeds the gateway's
limits, moves large tensors to shared memory, and adds the digests that the scheduler asked for.

Knows no protocol of clients. Links and pending requests are nereid.mesh_routing's.
"""

from __future__ import annotations

from dataclasses import dataclass
from time import monotonic_ns
from typing import TYPE_CHECKING, Final

from nereid.core.errors import InvalidArgument, Unavailable
from nereid.core.messages import CachedModels
from nereid.core.retry_after import DEFAULT_MS, DrainEstimate
from nereid.mesh_routing.mesh_router import MeshRouter
from nereid.services.gateway.pending_shares import PendingShares
from nereid.services.gateway.request_digest import Digester
from nereid.services.gateway.request_head import HeadModels
from nereid.shm.segments import SHM_THRESHOLD_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable

    from nereid.core.errors import NereidError
    from nereid.core.messages import InferRequest, Notice
    from nereid.mesh_routing.route import MeshAccess
    from nereid.pending_requests import PendingRequest
    from nereid.rpc.net.budget import ByteBudget
    from nereid.services.gateway.infer_chain import OnResponse
    from nereid.services.gateway.tensor_memory import TensorMemory

# protobuf's and gRPC's 2 GiB, less what stands beside the tensors of one request.
_MAX_INLINE_BYTES: Final = (1 << 31) - (16 << 20)
_TOO_LARGE: Final = (
    "{} bytes of tensors are more than a request may have that is not in shared memory"
)
# As Triton's models say when they are asked to stop.
_STOPPING: Final = (
    "Server is stopping, scheduler for model has stopped accepting new inference requests"
)
_QUEUE_FULL: Final = "Exceeds maximum queue size: {} are pending"


@dataclass(frozen=True)
class Limits:
    """What bounds the pending requests."""

    max_pending: int
    reconnect_limit_s: float


class Upstream:
    """An InferStep."""

    def __init__(
        self,
        mesh: MeshAccess,
        limits: Limits,
        tensors: TensorMemory,
        budget: ByteBudget,
        on_notice: Callable[[Notice], None] | None = None,
    ) -> None:
        """budget: a request that exceeds it is accepted while no other is pending."""
        # No client and no model has all of the limit while others want a part.
        self._shares = PendingShares(limits.max_pending, HeadModels().model_of)
        self._uncontended = self._shares.uncontended
        self._stopping = False
        self._drain = DrainEstimate()
        self._refused = 0
        self._budget = budget
        self._max_pending_bytes = budget.limits.total_bytes
        self.tensors = tensors
        self._forward_notice = on_notice
        # None: no model's requests want a digest.
        self._digester: Digester | None = None
        self.client = MeshRouter(
            mesh, tensors, on_notice=self._on_notice, reconnect_limit_s=limits.reconnect_limit_s
        )

    def start(self) -> None:
        """Open the link; call from the event loop."""
        self.tensors.start(self.client.release_segments)
        self.client.open()

    def infer(self, request: InferRequest, on_response: OnResponse) -> PendingRequest:
        client, payloads = self.client, request.payloads
        # Tensors in shared memory hardly count: they are bounded elsewhere.
        size_bytes = len(payloads[0]) if len(payloads) == 1 else sum(map(len, payloads))
        if size_bytes >= SHM_THRESHOLD_BYTES:
            self.tensors.stage(request)
            size_bytes = sum(map(len, request.payloads))
            if size_bytes > _MAX_INLINE_BYTES and request.lease is None:
                # The scheduler could not read a frame of this size, and would end the link.
                too_large = InvalidArgument(_TOO_LARGE.format(size_bytes))
                return client.refuse(request, on_response, too_large)
        pending = len(client.requests)
        if pending >= self._uncontended and (
            self._stopping
            or not self._shares.may_add(request, client.last_id + 1, client.requests.values())
        ):
            return self._refuse(request, on_response, f"{pending} requests")
        budget = self._budget
        if (
            client.pending_bytes + budget.held_bytes + size_bytes > self._max_pending_bytes
            and pending
            and not budget.may_add_pending(size_bytes)
        ):
            return self._refuse(request, on_response, f"{client.pending_bytes} bytes")
        if self._digester is not None:
            request.digest = self._digester.digest(request)
        if request.lease is not None and not self.tensors.shared:
            self.tensors.make_inline(request)
        return client.infer(request, on_response, size_bytes)

    def _refuse(
        self, request: InferRequest, on_response: OnResponse, pending: str
    ) -> PendingRequest:
        """Too much is pending: this. Or the gateway is stopping."""
        client = self.client
        if self._stopping:
            stopping = Unavailable(_STOPPING, retry_after_ms=DEFAULT_MS)
            return client.refuse(request, on_response, stopping)
        count = len(client.requests)
        completed = client.last_id - self._refused - count
        after_ms = self._drain.retry_after_ms(count, completed, monotonic_ns())
        self._refused += 1
        full = Unavailable(_QUEUE_FULL.format(pending), retry_after_ms=after_ms)
        return client.refuse(request, on_response, full)

    def stop_accepting(self) -> None:
        """Refuse requests from now on; those that are pending are finished."""
        self._stopping, self._uncontended = True, 0

    async def drain(self, timeout_s: float) -> bool:
        """Wait until no request is pending; False when the time ran out first."""
        return await self.client.drain(timeout_s)

    def close(self, reason: NereidError) -> None:
        """End the link; pending requests fail with the reason."""
        self.tensors.close()
        self.client.close(reason)

    def _on_notice(self, notice: Notice) -> None:
        if isinstance(notice, CachedModels):
            wanted = notice.names and notice.digest_key
            self._digester = Digester(notice.names, notice.digest_key) if wanted else None
        elif self._forward_notice is not None:
            self._forward_notice(notice)
