"""Last step of the data plane: checks limits, and hands requests to the mesh.

It also moves large tensors to shared memory, and sets sequence owners and digests.
"""

# layout: compiled

from __future__ import annotations

from dataclasses import dataclass
from time import monotonic_ns
from typing import TYPE_CHECKING, Final

from nereid.core.errors import STOPPING_MESSAGE, InvalidArgument, NereidError, Unavailable
from nereid.core.retry_after import DEFAULT_MS, DrainEstimate
from nereid.core.sequence_owners import SEQUENCE_ID
from nereid.core.wire.messages import CachedModels, ModelShadows, TrafficKeys, payload_bytes
from nereid.mesh_routing.router.router import Callbacks
from nereid.rpc.net.limits.budget import OverBudgetError, account_of
from nereid.shm.segments import SHM_THRESHOLD_BYTES
from nereid_gateway.core.access.caller_keys import CallerKeys
from nereid_gateway.core.access.principal import principal_of
from nereid_gateway.core.access.sequence_owners import sequence_owner
from nereid_gateway.core.charged_request import ChargedRequest
from nereid_gateway.core.client_request import ClientRequest
from nereid_gateway.core.pending_shares import PendingShares
from nereid_gateway.core.request_head import HeadReader
from nereid_gateway.core.retry_hints import over_budget
from nereid_gateway.core.tensors.request_digest import Digester
from nereid_gateway.plane.timeline import NO_TIMELINE

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from nereid.core.wire.messages import Notice
    from nereid.mesh_routing.access import MeshAccess
    from nereid.mesh_routing.router.pending_requests import PendingRequest
    from nereid.rpc.net.limits.budget import ByteBudget
    from nereid_gateway.core.infer_step import ShadowCopies
    from nereid_gateway.core.request_handle import OnResponse, RequestHandle
    from nereid_gateway.core.tensors.tensor_memory import TensorMemory
    from nereid_gateway.plane.timeline import GatewayTimeline

# The 2 GiB limit of protobuf and gRPC, less space for all but the tensors.
_MAX_INLINE_BYTES: Final = (1 << 31) - (16 << 20)
_TOO_LARGE: Final = (
    "{} bytes of tensors are more than a request may have that is not in shared memory"
)
_QUEUE_FULL: Final = "Exceeds maximum queue size: {} are pending"
# Measured: an element of a BYTES tensor takes this in addition to its content while a model
# executes, for objects, references and the runtime's strings, with one input and one output.
_STRING_BYTES: Final = 192
# Small requests are charged to their clients only if so many bytes are pending, in parts of the
# limit: many of one client leave their share to others as well.
_SMALL_UNCHARGED: Final = 0.25
_TOO_MANY_STRINGS: Final = (
    "{} string elements take about {} bytes while a model executes, more than the {} of one"
    " request. Use --max-connection-bytes to increase the limit."
)


@dataclass(frozen=True)
class Limits:
    """Limits on the requests that are pending."""

    max_pending: int
    reconnect_limit_s: float


class Upstream:
    """InferStep that hands requests to the router."""

    def __init__(  # noqa: PLR0913 (one by keyword)
        self,
        mesh: MeshAccess,
        limits: Limits,
        tensors: TensorMemory,
        budget: ByteBudget,
        on_notice: Callable[[Notice], None] | None = None,
        *,
        timeline: GatewayTimeline = NO_TIMELINE,
        limits_addresses: bool = False,
        has_access_control: bool = False,
        shadows: ShadowCopies | None = None,
    ) -> None:
        """Prepare the links. budget: a request that exceeds it may be pending alone.

        limits_addresses: see sequence_owner(). has_access_control: true if clients' rights are
        checked. shadows: copies requests for shadows.
        """
        # No client and no model may use the whole limit while others want a share of it.
        self._heads = HeadReader()
        self._shares = PendingShares(limits.max_pending, self._heads.model_of)
        self._always_admitted_below = self._shares.always_admitted_below
        self._stopping = False
        self._drain = DrainEstimate()
        self._refused = 0
        self._budget = budget
        self._uncontended_bytes = budget.uncontended_bytes
        self._small_uncharged_bytes = int(budget.limits.total_bytes * _SMALL_UNCHARGED)
        self.tensors = tensors
        self._forward_notice = on_notice
        self._limits_addresses = limits_addresses
        # None if no model needs digests of its requests.
        self._digester: Digester | None = None
        # None if no model needs the keys of its callers.
        self._caller_keys: CallerKeys | None = None
        # True if a model needs the client of each request; otherwise only sequences do.
        self._adds_clients = False
        self._has_access_control = self._adds_keys = has_access_control
        self._shadows = shadows
        # None if no model has a shadow.
        self._watching: ShadowCopies | None = None
        self.router = mesh.make_router(
            tensors,
            limits.reconnect_limit_s,
            Callbacks(self._on_notice, timeline.record_lost_link),
        )
        self.pending = self.router.pending

    def start(self) -> None:
        """Open the links. Call this on the event loop."""
        self.tensors.start(self.pending.release_segments)
        self.router.open()

    def infer(  # noqa: C901 - hot path
        self, request: ClientRequest, on_response: OnResponse
    ) -> RequestHandle:
        """Send a request to a scheduler, or refuse it."""
        if self._watching is not None:
            on_response = self._watching.watch(request, on_response)
        table, payloads = self.pending, request.payloads
        charged: ChargedRequest | None = None
        size_bytes = len(payloads[0]) if len(payloads) == 1 else sum(map(len, payloads))
        if (
            size_bytes >= SHM_THRESHOLD_BYTES
            or request.lease is not None
            or table.pending_bytes >= self._small_uncharged_bytes
        ):
            try:
                charged = self._charge(request, on_response)
            except NereidError as error:
                return table.refuse(request, on_response, error)
            on_response, size_bytes = charged.on_response, charged.size_bytes
        pending = len(table.requests)
        if pending >= self._always_admitted_below and not self._may_add(request):
            return table.refuse(request, on_response, self._queue_full(f"{pending} requests"))
        budget = self._budget
        if (
            budget.unread_bytes
            or table.pending_bytes + budget.held_bytes + size_bytes > self._uncontended_bytes
        ):
            full = self._over_budget(request, size_bytes)
            if full is not None:
                return table.refuse(request, on_response, full)
        parameters = request.parameters
        if self._adds_clients or (parameters and SEQUENCE_ID in parameters):
            request.sequence_owner = sequence_owner(
                request.sender, limits_addresses=self._limits_addresses
            )
        if self._adds_keys:
            self._add_keys(request)
        if request.lease is not None and not self.tensors.shared:
            self.tensors.make_inline(request)
        handle = table.infer(request, on_response, size_bytes)
        if charged is None:
            return handle
        charged.handle = handle
        return charged

    def send_copy(self, request: ClientRequest, on_response: OnResponse) -> RequestHandle:
        """Send a copy of a request, which takes no place in the limits on pending requests."""
        self.tensors.stage(request)
        if request.lease is not None and not self.tensors.shared:
            self.tensors.make_inline(request)
        return self.pending.infer(request, on_response)

    def _may_add(self, request: ClientRequest) -> bool:
        """Return whether a request gets a place in the limit, in which copies have none."""
        if self._stopping:
            return False
        table = self.pending
        pending: Collection[PendingRequest] = table.requests.values()
        if self._watching is not None:
            pending = [each for each in pending if not each.request.is_shadow]
        return self._shares.may_add(request, table.last_id + 1, pending)

    def size_of(self, request: ClientRequest) -> int:
        """Return a request's bytes, or raise InvalidArgument if it has too many strings."""
        strings = self._heads.strings_of(request.head)
        strings_bytes = strings * _STRING_BYTES
        most_bytes = self._budget.limits.connection_bytes
        if strings_bytes > most_bytes:
            raise InvalidArgument(_TOO_MANY_STRINGS.format(strings, strings_bytes, most_bytes))
        return sum(map(payload_bytes, request.payloads)) + strings_bytes

    def _charge(self, request: ClientRequest, on_response: OnResponse) -> ChargedRequest:
        size_bytes = self.size_of(request)
        try:
            charged = ChargedRequest(account_of(request.sender), size_bytes, on_response)
        except OverBudgetError as error:
            raise over_budget(error) from None
        self.tensors.stage(request)
        inline_bytes = 0 if request.lease is not None else sum(map(len, request.payloads))
        if inline_bytes > _MAX_INLINE_BYTES:
            # The scheduler could not read a frame of this size, and would close the link.
            charged.release()
            raise InvalidArgument(_TOO_LARGE.format(inline_bytes))
        return charged

    def _over_budget(self, request: ClientRequest, size_bytes: int) -> Unavailable | None:
        """Return an error, or None. A request that exceeds the budget may be pending alone."""
        table, account = self.pending, account_of(request.sender)
        if table.requests and not self._budget.may_add_pending(account, size_bytes):
            return self._queue_full(f"{table.pending_bytes} bytes")
        try:
            account.check_unread()
        except OverBudgetError as error:
            return over_budget(error)
        return None

    def _queue_full(self, pending: str) -> Unavailable:
        """Return the error for a full queue or a stopping gateway. pending: how much waits."""
        if self._stopping:
            return Unavailable(STOPPING_MESSAGE, retry_after_ms=DEFAULT_MS)
        table = self.pending
        count = len(table.requests)
        completed = table.last_id - self._refused - count
        after_ms = self._drain.retry_after_ms(count, completed, monotonic_ns())
        self._refused += 1
        return Unavailable(_QUEUE_FULL.format(pending), retry_after_ms=after_ms)

    def stop_accepting(self) -> None:
        """Refuse new requests from now on. Pending requests are finished."""
        self._stopping, self._always_admitted_below = True, 0

    async def drain(self, timeout_s: float) -> bool:
        """Wait until no request is pending. Return False if the time runs out first."""
        return await self.pending.drain(timeout_s)

    def close(self) -> None:
        """Close the links. Pending and further requests fail."""
        self.stop_accepting()
        self.tensors.close()
        self.router.close(Unavailable(STOPPING_MESSAGE, retry_after_ms=DEFAULT_MS))

    def _on_notice(self, notice: Notice) -> None:
        if isinstance(notice, CachedModels):
            wanted = bool(notice.names and notice.digest_key)
            self._digester = Digester(notice.names, notice.digest_key) if wanted else None
            self._update_adds_keys()
        elif isinstance(notice, TrafficKeys):
            self._set_caller_keys(notice)
        elif isinstance(notice, ModelShadows):
            shadows = self._shadows
            if shadows is not None:
                has_any = shadows.set_shadows(notice, self.send_copy)
                self._watching = shadows if has_any else None
        elif self._forward_notice is not None:
            self._forward_notice(notice)

    def _add_keys(self, request: ClientRequest) -> None:
        """Add the client's rights and what the schedulers ask for: a digest, the caller's key."""
        if self._has_access_control:
            principal = principal_of(request.sender)
            if principal is not None:
                request.callable_models = principal.grant.callable_models
        if self._digester is not None:
            request.digest = self._digester.digest(request)
        if self._caller_keys is not None:
            request.caller_key = self._caller_keys.read(request)

    def _update_adds_keys(self) -> None:
        asked = self._digester is not None or self._caller_keys is not None
        self._adds_keys = asked or self._has_access_control

    def _set_caller_keys(self, notice: TrafficKeys) -> None:
        keys = CallerKeys(dict(notice.models), self._heads)
        self._caller_keys = keys if notice.models else None
        self._adds_clients = notice.clients
        self._update_adds_keys()
        # They came before the notice, and are sent after it.
        for pending in self.pending.waiting():
            if isinstance(pending.request, ClientRequest):
                pending.request.caller_key = keys.read(pending.request)
