"""Metrics port: a page with the mesh's series, from the scheduler, and this gateway's own.

As on Triton, it accepts only GET, and any path but /metrics is an empty page. It also offers
OpenMetrics, and health routes for probes without credentials or certificate.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections import Counter
from typing import TYPE_CHECKING, Final

from nereid.core.errors import NereidError
from nereid.core.files.paced_reads import PacedReads
from nereid.observability import metrics, openmetrics
from nereid.observability.metrics_page import CONTENT_TYPE, Page
from nereid.observability.process_metrics import load_collectors, write_process
from nereid.pb import nereid_pb2 as pb
from nereid.rpc import Status
from nereid_gateway.core.routes import METRICS, resolve
from nereid_gateway.server.call_tasks import CallTasks

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from nereid.mesh_routing.router.router import Router
    from nereid.observability.metrics_page import Family
    from nereid_gateway.core.kept_counts import KeptCounts
    from nereid_gateway.extras.shadows.shadows import Shadows
    from nereid_gateway.fronts.grpc.front import GrpcFront
    from nereid_gateway.guards.auth.access import AccessControl
    from nereid_gateway.plane.access_log import AccessLog
    from nereid_gateway.plane.control.control import Control
    from nereid_gateway.plane.decoding.large_texts import LargeTexts
    from nereid_gateway.server.call import HttpCall
    from nereid_gateway.server.ordered_responses import Dispatch
    from nereid_gateway.server.server import HttpServer
    from nereid_gateway.settings import GatewaySettings

    ReadOwnPage = Callable[[], Awaitable[bytes]]

_log = logging.getLogger(__name__)

_PATH: Final = re.compile(rb"/metrics/?(\?.*)?")
_CONTENT_TYPE: Final = CONTENT_TYPE.encode()
_OPENMETRICS: Final = openmetrics.CONTENT_TYPE.encode()


def mesh_request(settings: GatewaySettings) -> pb.MetricsRequest:
    """Return the request for the series of the scheduler."""
    return pb.MetricsRequest(
        without_cpu=not settings.allow_cpu_metrics, without_gpu=not settings.allow_gpu_metrics
    )


class GatewayMetrics:
    """Metric series of this gateway."""

    def __init__(  # noqa: PLR0913 - what not every gateway has comes by keyword
        self,
        http: Sequence[HttpServer],
        grpc: GrpcFront,
        router: Router,
        access: AccessControl | None = None,
        *,
        large_texts: LargeTexts,
        kept: KeptCounts | None = None,
        grpc_connections: Callable[[], int | None] = lambda: None,
        write_texts: Callable[[Page], None] | None = None,
        access_log: AccessLog | None = None,
        shadows: Shadows | None = None,
    ) -> None:
        """kept: counts of earlier processes of a group's gateway.

        write_texts: adds the series of the API of texts to a page, if it is served.
        """
        self._write_texts = write_texts
        self._kept = kept
        self._large_texts = large_texts
        self._grpc_connections = grpc_connections
        self._access_log = access_log
        self._shadows = shadows
        self._http = http
        self._grpc = grpc
        self._router = router
        self._access = access

    def write(self, page: Page) -> None:
        """Add all series of this gateway to a page."""
        statuses: Counter[bytes] = Counter()
        for server in self._http:
            statuses.update(server.statuses)
        by_status = {status.decode(): count for status, count in sorted(statuses.items())}
        self._write_counts(page, metrics.HTTP_RESPONSES, "status", by_status)
        codes = sorted(self._grpc.statuses.items())
        by_status = {Status(code).name: count for code, count in codes}
        self._write_counts(page, metrics.GRPC_RESPONSES, "status", by_status)
        page.add_value(metrics.GATEWAY_PENDING, len(self._router.pending.requests))
        connections = sum(server.connections for server in self._http)
        page.add_value(metrics.GATEWAY_CONNECTIONS, connections)
        grpc_connections = self._grpc_connections()
        if grpc_connections is not None:
            page.add_value(metrics.GATEWAY_GRPC_CONNECTIONS, grpc_connections)
        page.add_value(metrics.GATEWAY_LINKED, self._router.links_up)
        if self._access_log is not None:
            page.add_value(metrics.ACCESS_LOG_DROPPED, self._access_log.dropped)
        for model, times in self._large_texts.by_model.items():
            labels = {"model": model}
            page.add_value(metrics.GATEWAY_LARGE_TEXTS, times.count, labels)
            page.add_value(metrics.GATEWAY_LARGE_TEXT_SECONDS, times.ns / 1e9, labels)
        if self._access is not None:
            refusals = self._access.refusals.counts.items()
            by_reason = {reason.value: count for reason, count in refusals}
            self._write_counts(page, metrics.ACCESS_REFUSALS, "reason", by_reason)
        if self._shadows is not None:
            self._shadows.write_metrics(page)
        if self._write_texts is not None:
            self._write_texts(page)
        if self._kept is not None:
            self._kept.save()

    def _write_counts(
        self, page: Page, family: Family, label: str, counts: Mapping[str, int]
    ) -> None:
        if self._kept is not None:
            counts = self._kept.add_to(family.name, counts)
        for value, count in counts.items():
            page.add_value(family, count, {label: value})

    async def read_page(self) -> bytes:
        """Return the part of the page that has this gateway's series."""
        await load_collectors()
        page = Page()
        self.write(page)
        write_process(page)
        return page.encode()


class MetricsFront:
    """Responds to HttpCalls of the metrics port. An instance is a Dispatch."""

    def __init__(
        self,
        read_own: ReadOwnPage,
        control: Control,
        request: pb.MetricsRequest,
        health: Dispatch,
    ) -> None:
        """read_own: returns the series of this gateway or of its group."""
        self._health = health
        self._read_own = read_own
        self._control = control
        self._request = request
        self._request_with_exemplars = pb.MetricsRequest(with_exemplars=True)
        self._request_with_exemplars.MergeFrom(request)
        self._tasks = CallTasks()
        self._pages = PacedReads(self._read_page)
        # True if the last page lacked the scheduler's series. Each change is logged once.
        self._scheduler_missing = False

    def __call__(self, call: HttpCall) -> None:
        """Respond to a call of the metrics port."""
        if call.method != b"GET":
            call.respond(405, (), _CONTENT_TYPE, b"Allow: GET\r\n")
        elif METRICS in resolve(call.target).endpoint.ports:
            self._health(call)
        elif _PATH.fullmatch(call.target) is None:
            call.respond(200, (), _CONTENT_TYPE)
        else:
            self._tasks.spawn(call, self._respond(call))

    async def _respond(self, call: HttpCall) -> None:
        accepted = call.headers.get(b"accept", b"").decode("latin-1")
        as_openmetrics = openmetrics.prefers_openmetrics(accepted)
        page = await self._pages.get(as_openmetrics)
        call.respond(200, (page,), _OPENMETRICS if as_openmetrics else _CONTENT_TYPE)

    async def _read_page(self, as_openmetrics: bool) -> bytes:
        request = self._request_with_exemplars if as_openmetrics else self._request
        mesh, own = await asyncio.gather(self._read_mesh_page(request), self._read_own())
        return openmetrics.to_openmetrics(mesh + own) if as_openmetrics else mesh + own

    async def _read_mesh_page(self, request: pb.MetricsRequest) -> bytes:
        try:
            response = await self._control.call("Metrics", request, pb.MetricsResponse)
        except NereidError as error:
            if not self._scheduler_missing:
                self._scheduler_missing = True
                _log.warning("the metrics page lacks the scheduler's series: %s", error.message)
            return b""
        if self._scheduler_missing:
            self._scheduler_missing = False
            _log.info("the metrics page has the scheduler's series again")
        return response.exposition
