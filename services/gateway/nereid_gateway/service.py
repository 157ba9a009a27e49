"""Gateway service: constructs the data plane and the fronts, and starts and drains them."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from nereid import rpc
from nereid.core.wire.messages import LastCounts, LogRules, ModelsChanged, TraceRules
from nereid.observability.logging import apply_log_rules
from nereid.process.service_process import StartError
from nereid.rpc.net.limits.budget import ByteBudget
from nereid.rpc.net.limits.stall_detection import UploadLimits
from nereid.rpc.net.zlib_queue import ZlibQueue
from nereid_gateway.core.deferred_imports import import_deferred
from nereid_gateway.core.kept_counts import KeptCounts
from nereid_gateway.core.request_head import MAX_COUNT
from nereid_gateway.core.response_timings import TimedRequests
from nereid_gateway.core.tensors.tensor_memory import TensorMemory
from nereid_gateway.extras import exposure
from nereid_gateway.extras.metrics import GatewayMetrics, MetricsFront, mesh_request
from nereid_gateway.extras.shadows.endpoints import ShadowEndpoints
from nereid_gateway.extras.shadows.reports import CountReports
from nereid_gateway.extras.shadows.shadows import Shadows
from nereid_gateway.fronts.grpc.front import GrpcFront
from nereid_gateway.fronts.http.front import HttpFront, body_too_large
from nereid_gateway.fronts.http.inference.infer_request import text_too_large
from nereid_gateway.guards.policy import restricted_apis
from nereid_gateway.guards.policy.call_policy import CallPolicy
from nereid_gateway.guards.policy.grpc_guard import GrpcGuard
from nereid_gateway.guards.policy.http_guard import HttpGuard
from nereid_gateway.plane.client_shm.outputs import RegionOutputs
from nereid_gateway.plane.client_shm.region_files import RegionFiles
from nereid_gateway.plane.client_shm.regions import NO_REGIONS, Regions
from nereid_gateway.plane.client_shm.shared_regions import SharedRegions
from nereid_gateway.plane.control.control import Control
from nereid_gateway.plane.control.group_metrics import GroupMetrics
from nereid_gateway.plane.control.model_counts import ModelCounts
from nereid_gateway.plane.data_plane import DataPlane, InferChain
from nereid_gateway.plane.decoding.pool import DecoderPool, PoolLimits
from nereid_gateway.plane.recording import Recording
from nereid_gateway.plane.timeline import NO_TIMELINE, GatewayTimeline
from nereid_gateway.plane.tracing.request_traces import open_tracing
from nereid_gateway.plane.upstream import Limits, Upstream
from nereid_gateway.server.content_coding import ContentCoder
from nereid_gateway.server.header_forwarding import (
    CasePreservingReader,
    HeaderForwarding,
)
from nereid_gateway.server.limits import HttpLimits
from nereid_gateway.server.request_reader import RequestReader
from nereid_gateway.server.server import HttpServer

if TYPE_CHECKING:
    from nereid.core.files.file_watch import FileWatch
    from nereid.core.wire.messages import Notice, ToScheduler
    from nereid.mesh_routing.access import MeshAccess
    from nereid.mesh_routing.router.route import OpenLink, SchedulerLink
    from nereid.process.gateway_group import GatewayGroup
    from nereid.rpc.net.shared_ports import InheritedPort, InheritedPorts
    from nereid_gateway.core.infer_step import InferStep
    from nereid_gateway.extras.console.endpoints import ConsoleEndpoints
    from nereid_gateway.extras.console.hub import ConsoleHub
    from nereid_gateway.extras.openai.openai_api import OpenAiApi
    from nereid_gateway.guards.auth.access import AccessControl
    from nereid_gateway.guards.auth.reload import LoadedConfig
    from nereid_gateway.plane.slow_requests import SlowRequests
    from nereid_gateway.server.body import AllocateBody
    from nereid_gateway.server.ordered_responses import Dispatch
    from nereid_gateway.settings import GatewaySettings

_log = logging.getLogger(__name__)

# As on Triton, new requests are still accepted in this share of the drain time.
_ACCEPTING_SHARE: Final = 0.2
# Time for clients to move their open connections to another gateway.
_NOTICE_S: Final = 0.5
_SCRAPE_TIMEOUT_S: Final = 2.0
# The first gateway of a group waits this long for the others before it serves.
_GROUP_START_S: Final = 5.0
_MAX_UNSENT_BYTES: Final = 64 << 20


def joined(link: rpc.Link[ToScheduler]) -> OpenLink:
    """Return a function that opens one end of an in-memory pair of links."""

    def open_link(*, on_items: Any, on_up: Any, on_down: Any) -> SchedulerLink:
        link.on_items, link.on_up, link.on_down = on_items, on_up, on_down
        if link.up:
            on_up()
        return link

    return open_link


class GatewayService:
    """Gateway that runs in one process. Call start() once and drain() once."""

    def __init__(
        self,
        settings: GatewaySettings,
        *,
        mesh: MeshAccess,
        ports: InheritedPorts | None = None,
        group: GatewayGroup | None = None,
    ) -> None:
        """ports: sockets that are already bound. group: the gateways that share the ports."""
        self._settings = settings
        self._ports = ports
        reconnect_limit_s = settings.or_restart(settings.reconnect_timeout_secs)
        control_limit_s = settings.or_restart(settings.control_timeout_secs)
        tensors = TensorMemory(settings.shm_limit_bytes, settings.shm_idle_secs)
        scrape_limit_s = min(control_limit_s, _SCRAPE_TIMEOUT_S)
        self._counts = ModelCounts(mesh, scrape_limit_s, group=group)
        control = Control(mesh, control_limit_s, reconnect_limit_s, counts=self._counts)
        # The HTTP port and the gRPC port share this budget of bytes.
        self._budget = ByteBudget(
            settings.budget_limits, lambda: self._upstream.pending.pending_bytes
        )
        self._zlib_queue = ZlibQueue()
        self._timeline: GatewayTimeline = NO_TIMELINE
        if settings.timeline_seconds:
            self._timeline = GatewayTimeline(settings.timeline_seconds, mesh, group)
        self._shadows = Shadows(CountReports(control).send)
        self._upstream = Upstream(
            mesh,
            Limits(settings.max_pending_requests, reconnect_limit_s),
            tensors,
            self._budget,
            self._on_notice,
            timeline=self._timeline,
            limits_addresses=settings.hardened,
            has_access_control=bool(settings.auth_config),
            shadows=self._shadows,
        )
        chain = _infer_chain(settings, self._upstream, group, self._timeline)
        self._tracing = chain.tracing
        self._access_log = chain.access_log
        self._decoders = DecoderPool(
            PoolLimits(
                processes=settings.decoder_processes,
                memory_bytes=settings.decoder_memory_bytes,
                job_timeout_s=settings.decoder_timeout_secs,
                max_waiting_bytes=settings.decoder_max_waiting_bytes,
            )
        )
        self._data_plane = DataPlane(
            chain,
            self._upstream,
            control,
            settings.server_id,
            self._decoders,
            timeline=self._timeline,
        )
        # Both are None if clients need no credentials.
        self._access, self._access_watch = _open_access(settings)
        self._consoles: ConsoleHub | None = None
        self._http_policy = CallPolicy(
            restricted_apis.gather(settings.http_restricted_api),
            settings.closed_apis("http"),
            self._access,
            str.encode,
        )
        coder = ContentCoder(
            settings.http_max_input_size, settings.max_inflation_ratio or None, self._zlib_queue
        )
        self._openai_api = self._make_openai_api(coder)
        self._http_front = HttpFront(
            self._data_plane,
            coder,
            self._forwarding(settings.http_header_forward_pattern),
            self._console(chain.slow_requests),
            restricted_apis=settings.restricted_apis("http"),
            extra_endpoints=(
                ShadowEndpoints(self._data_plane, self._shadows),
                *(() if self._openai_api is None else self._openai_api.endpoints),
            ),
        )
        self._http = self._http_server()
        # All HTTP servers that clients connect to.
        self._edges = [self._http]
        self._grpc_front = GrpcFront(
            self._data_plane, self._forwarding(settings.grpc_header_forward_pattern)
        )
        self._grpc: rpc.Engine | None = None
        kept = None
        if group is not None:
            kept = KeptCounts(group.directory / f"counts-{group.number}.json")
        own = GatewayMetrics(
            self._edges,
            self._grpc_front,
            self._upstream.router,
            self._access,
            large_texts=self._data_plane.decoding.large_texts,
            kept=kept,
            grpc_connections=self._count_grpc_connections,
            write_texts=None if self._openai_api is None else self._openai_api.write_metrics,
            access_log=self._access_log,
            shadows=self._shadows,
        )
        self._read_own = own.read_page
        self._shares_ports = (
            group is not None or settings.reuse_http_port or settings.reuse_grpc_port
        )
        self._group_metrics: GroupMetrics | None = None
        if group is not None:
            number, size = group.number, group.size
            self._group_metrics = GroupMetrics(number, size, group.directory, own.write)
            self._read_own = self._group_metrics.read_page
        metrics_front = MetricsFront(
            self._read_own,
            # A metrics scrape has a shorter time limit than a client's control call.
            Control(mesh, scrape_limit_s, counts=self._counts),
            mesh_request(settings),
            self._http_front,
        )
        self._metrics = HttpServer(metrics_front, _http_limits(settings))
        self._managed = self._managed_ports(control, metrics_front)
        self._edges += self._managed.values()
        # Addresses that start() has bound. None: the port is not served.
        self.http_address: str | None = None
        self.grpc_address: str | None = None
        self.metrics_address: str | None = None
        # Keys: "sagemaker" and "vertex-ai".
        self.managed_addresses: dict[str, str] = {}

    def _console(self, slow_requests: SlowRequests | None) -> ConsoleEndpoints | None:
        if slow_requests is None:
            return None
        # Most gateways start without this module.
        from nereid_gateway.extras.console.console import make_console  # noqa: PLC0415

        self._consoles, endpoints = make_console(
            self._data_plane,
            slow_requests,
            self._http_policy,
            mesh_request(self._settings),
            self._read_own_page,
            grpc_port=self._settings.grpc_port if self._settings.allow_grpc else 0,
            timeline_seconds=self._settings.timeline_seconds,
        )
        return endpoints

    def _make_openai_api(self, coder: ContentCoder) -> OpenAiApi | None:
        if not self._settings.openai_api:
            return None
        # Most gateways start without these modules.
        try:
            from nereid_gateway.extras.openai.openai_api import OpenAiApi  # noqa: PLC0415
        except ImportError as error:
            raise StartError(
                f"--openai-api: {error.name} is missing; pip install nereid-mesh[openai]"
            ) from error

        pattern = self._settings.http_header_forward_pattern
        return OpenAiApi(self._data_plane, coder, self._forwarding(pattern))

    async def _read_own_page(self) -> bytes:
        return await self._read_own()

    def _http_server(self) -> HttpServer:
        settings = self._settings
        reader = CasePreservingReader if settings.http_header_forward_pattern else RequestReader
        dispatch, allocate_body = self._guard(self._http_front)
        return HttpServer(
            dispatch,
            replace(
                _http_limits(settings),
                body_too_large=partial(body_too_large, settings.grpc_max_input_size),
            ),
            reader,
            allocate_body,
            self._budget,
            set_error_form=None if self._openai_api is None else self._openai_api.set_error_form,
        )

    def _managed_ports(self, control: Control, metrics: Dispatch) -> dict[str, HttpServer]:
        settings = self._settings
        if not settings.has_managed_port:
            return {}
        # Most gateways do not serve these ports.
        from nereid_gateway.extras.managed.ports import make_ports  # noqa: PLC0415

        limits = replace(
            _http_limits(settings),
            body_too_large=lambda _, size, limit: text_too_large(size, limit),
        )
        front, guard = self._http_front, self._guard
        return make_ports(settings, control, front, metrics, guard, limits, self._budget)

    def _guard(self, front: Dispatch) -> tuple[Dispatch, AllocateBody]:
        policy = self._http_policy
        if not policy:
            return front, self._http_front.allocate_body
        guard = HttpGuard(front, self._http_front.allocate_body, policy)
        return guard, guard.allocate_body

    def _forwarding(self, pattern: str) -> HeaderForwarding | None:
        without = frozenset[str]() if self._access is None else self._access.headers
        return HeaderForwarding(pattern, without, MAX_COUNT) if pattern else None

    async def start(self) -> None:
        """Bind the ports and open the link. If a port is taken, close all and raise OSError."""
        settings = self._settings
        try:
            if self._group_metrics is not None:
                await self._group_metrics.start()
            await self._timeline.start()
            await self._counts.start()
            if self._ports is not None:
                await self._ports.await_members(_GROUP_START_S)
            if settings.allow_http:
                self.http_address = await self._http.listen(
                    settings.http_at,
                    settings.tls("http"),
                    reuse_port=settings.reuse_http_port,
                    inherited=self._inherited("http"),
                )
            if settings.allow_grpc:
                self.grpc_address = await self._start_grpc()
            await self._start_managed()
            if settings.allow_metrics:
                self.metrics_address = await self._metrics.listen(
                    settings.metrics_at, inherited=self._inherited("metrics")
                )
        except OSError:
            await self._close_edges()
            if self._grpc is not None:
                await self._grpc.drain(0)
            raise
        if self._access_watch is not None:
            self._access_watch.start()
        self._upstream.start()
        addresses = self.http_address, self.grpc_address, self.metrics_address
        _log.info("serving HTTP on %s, gRPC on %s, metrics on %s", *addresses)

    async def _start_managed(self) -> None:
        for name, address in self._settings.managed_at.items():
            bound = await self._managed[name].listen(address, inherited=self._inherited(name))
            self.managed_addresses[name] = bound
            _log.info("serving the routes of %s on %s", name, bound)

    async def import_deferred(self) -> None:
        """Import the modules that the start does not need. The gateway serves meanwhile."""
        await asyncio.to_thread(import_deferred)

    def exposure(self) -> str:
        """Return a summary of what each port serves, and to whom."""
        addresses = {
            "http": self.http_address,
            "grpc": self.grpc_address,
            "metrics": self.metrics_address,
            **self.managed_addresses,
        }
        return exposure.exposure(self._settings, addresses)

    def _on_notice(self, notice: Notice) -> None:
        if isinstance(notice, LogRules):
            apply_log_rules(notice)
        elif isinstance(notice, TraceRules) and self._tracing is not None:
            self._tracing.set_rules(notice)
        elif isinstance(notice, LastCounts):
            self._counts.add(notice.response)
        elif isinstance(notice, ModelsChanged) and self._openai_api is not None:
            self._openai_api.models_changed()

    async def _start_grpc(self) -> str:
        settings = self._settings
        front = self._grpc_front
        restricted = restricted_apis.gather(settings.grpc_restricted_protocol)
        policy = CallPolicy(restricted, settings.closed_apis("grpc"), self._access)
        guard = GrpcGuard(front, self._data_plane, policy)
        self._grpc = self._engine(guard.handlers(front.handlers()))
        tls, inherited = settings.tls("grpc"), self._inherited("grpc")
        return await self._grpc.listen(settings.grpc_at, tls, inherited=inherited)

    def _inherited(self, port: str) -> InheritedPort | None:
        return None if self._ports is None else self._ports.get(port)

    def _count_grpc_connections(self) -> int | None:
        return None if self._grpc is None else self._grpc.connections

    def _engine(self, handlers: rpc.Handlers) -> rpc.Engine:
        options = _grpc_options(self._settings)
        if self._settings.grpc_engine == "nereid":
            return rpc.Server(handlers, options, self._budget, self._zlib_queue)
        # Few settings choose this engine.
        from nereid.rpc.grpcio_engine import GrpcioServer, PingRules  # noqa: PLC0415

        settings = self._settings
        pings = PingRules(
            max_without_data=settings.grpc_http2_max_pings_without_data,
            min_interval_ms=settings.grpc_http2_min_recv_ping_interval_without_data,
            max_strikes=settings.grpc_http2_max_ping_strikes,
        )
        return GrpcioServer(handlers, options, pings)

    async def drain(self, timeout_s: float) -> None:
        """Send clients elsewhere, finish pending requests, then close, all within timeout_s.

        If no other gateway shares the ports, the ports stay open meanwhile, so that a new client
        gets at least an error.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        self._data_plane.begin_drain()
        # Copies must not delay the end.
        self._shadows.stop()
        if self._consoles is not None:
            self._consoles.end_all()
        for edge in self._edges:
            edge.begin_drain()
        await self._announce_drain(min(_NOTICE_S, timeout_s * _ACCEPTING_SHARE))
        await self._decoders.drain(timeout_s * _ACCEPTING_SHARE)
        if not await self._upstream.drain(timeout_s * _ACCEPTING_SHARE):
            pending = len(self._upstream.pending.requests)
            _log.info("draining: %d requests are still pending, no more are accepted", pending)
        if self._shares_ports:
            # Other gateways accept new connections. Requests on open connections are still served.
            self._stop_accepting()
        else:
            self._data_plane.stop_accepting()
        self._grpc_front.end_streams()
        if not await self._upstream.drain(max(0.0, deadline - loop.time())):
            pending = len(self._upstream.pending.requests)
            _log.warning("draining: %d requests were not finished in time, and fail", pending)
        self._stop_accepting()
        self._decoders.close()
        self._upstream.close()
        if self._grpc is not None:
            await self._grpc.drain(max(0.1, deadline - loop.time()))
        # Clients get time to read the responses in the transports' buffers, and to disconnect.
        limit_s = max(0.1, deadline - loop.time())
        await asyncio.gather(*(edge.wait_closed(limit_s) for edge in self._edges))
        await self._close_edges()
        await self._close_unrelated()

    async def _close_unrelated(self) -> None:
        await self._shadows.close()
        await self._counts.close()
        await self._metrics.close()
        if self._group_metrics is not None:
            await self._group_metrics.close()
        await self._timeline.close()
        self._zlib_queue.close()
        if self._openai_api is not None:
            self._openai_api.close()
        if self._access_watch is not None:
            await self._access_watch.close()
        self._data_plane.regions.close()
        if self._tracing is not None:
            await asyncio.to_thread(self._tracing.close)
        if self._access_log is not None:
            await asyncio.to_thread(self._access_log.close)

    def _stop_accepting(self) -> None:
        for edge in self._edges:
            edge.stop_accepting()

    async def _close_edges(self) -> None:
        for edge in self._edges:
            await edge.close()

    async def _announce_drain(self, limit_s: float) -> None:
        """Announce the drain to clients, and keep serving for at most limit_s."""
        notices = [edge.wait_closed(limit_s) for edge in self._edges]
        if self._grpc is not None:
            listening = not self._shares_ports
            notices.append(self._grpc.announce_drain(limit_s, listening=listening))
        await asyncio.gather(*notices)


def _open_access(
    settings: GatewaySettings,
) -> tuple[AccessControl | None, FileWatch[LoadedConfig] | None]:
    if not settings.auth_config:
        return None, None
    # Most gateways start without this module.
    from nereid_gateway.guards.auth.access import open_access  # noqa: PLC0415

    return open_access(settings.auth_config)


def _infer_chain(
    settings: GatewaySettings,
    upstream: Upstream,
    group: GatewayGroup | None,
    timeline: GatewayTimeline,
) -> InferChain:
    """Return the chain: recording, outputs in clients' shared memory, upstream."""
    step: InferStep = upstream
    regions = NO_REGIONS
    if settings.allow_client_shm:
        most_bytes = settings.budget_limits.connection_bytes
        regions = Regions(allowed=True, max_request_bytes=most_bytes)
        if group is not None:
            files = RegionFiles(group.directory / "regions")
            regions = SharedRegions(files, max_request_bytes=most_bytes)
        step = RegionOutputs(step.infer)
    tracing = open_tracing(settings)
    slow_requests = None
    if settings.console:
        # Most gateways start without this module.
        from nereid_gateway.plane.slow_requests import SlowRequests  # noqa: PLC0415

        slow_requests = SlowRequests()
    access_log = None
    if settings.access_log:
        from nereid_gateway.plane.access_log import AccessLog  # noqa: PLC0415

        access_log = AccessLog(settings.access_log, settings.access_log_rate)
    timed = TimedRequests(settings.response_timings)
    is_read = timeline.records or any(
        reader is not None for reader in (tracing, slow_requests, access_log)
    )
    if is_read or timed is not TimedRequests.NEVER:
        step = Recording(step.infer, timeline.requests, tracing, slow_requests, access_log)
    records_all = is_read or timed is TimedRequests.ALWAYS
    return InferChain(step.infer, tracing, regions, timed, slow_requests, records_all, access_log)


def _http_limits(settings: GatewaySettings) -> HttpLimits:
    return HttpLimits(
        max_body_bytes=settings.http_max_input_size,
        max_header_bytes=settings.http_max_header_size,
        max_pipelined=settings.http_max_pipelined,
        header_timeout_s=settings.http_request_timeout_secs,
        body_timeout_s=settings.http_request_timeout_secs,
        upload=_upload_limits(settings),
        idle_timeout_s=settings.http_idle_timeout_secs,
        write_timeout_s=settings.write_timeout_secs or None,
        max_connections=settings.max_connections,
        max_client_connections=settings.max_client_connections,
    )


def _upload_limits(settings: GatewaySettings) -> UploadLimits:
    return UploadLimits(
        min_bytes_per_s=settings.min_upload_rate,
        window_s=settings.http_request_timeout_secs,
        total_s=settings.upload_timeout_secs or None,
    )


def _grpc_options(settings: GatewaySettings) -> rpc.ServerOptions:
    return rpc.ServerOptions(
        max_message_bytes=settings.grpc_max_input_size,
        max_inflation_ratio=settings.max_inflation_ratio or None,
        upload=_upload_limits(settings),
        idle_timeout_s=settings.grpc_idle_timeout_secs or None,
        keepalive_interval_s=settings.grpc_keepalive_time / 1000,
        keepalive_timeout_s=settings.grpc_keepalive_timeout / 1000,
        keepalive_without_calls=settings.grpc_keepalive_permit_without_calls,
        max_connection_age_s=settings.grpc_max_connection_age / 1000 or None,
        max_connection_age_grace_s=settings.grpc_max_connection_age_grace / 1000 or None,
        compression=settings.grpc_infer_response_compression_level,
        write_timeout_s=settings.write_timeout_secs or None,
        read_timeout_s=settings.http_request_timeout_secs,
        max_connections=settings.max_connections,
        max_client_connections=settings.max_client_connections,
        max_unsent_bytes=_MAX_UNSENT_BYTES,
        reuse_port=settings.reuse_grpc_port,
    )
