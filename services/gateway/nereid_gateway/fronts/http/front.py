"""Front of the HTTP port: finds the handler of each call. The endpoints are in core/routes.py."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from nereid_gateway.core.access.principal import principal_of
from nereid_gateway.core.routes import ENDPOINTS, Endpoint, Route, resolve
from nereid_gateway.fronts.bound_handlers import bind_handlers
from nereid_gateway.fronts.http.endpoints.executors import ExecutorEndpoints
from nereid_gateway.fronts.http.endpoints.generate import GenerateEndpoint
from nereid_gateway.fronts.http.endpoints.health import HealthEndpoints
from nereid_gateway.fronts.http.endpoints.metadata import MetadataEndpoints
from nereid_gateway.fronts.http.endpoints.repository import RepositoryEndpoints
from nereid_gateway.fronts.http.endpoints.shared_memory import SharedMemoryEndpoints
from nereid_gateway.fronts.http.endpoints.timeline import TimelineEndpoint
from nereid_gateway.fronts.http.endpoints.trace_and_log import TraceAndLogEndpoints
from nereid_gateway.fronts.http.endpoints.traffic import TrafficEndpoints
from nereid_gateway.fronts.http.inference.infer import (
    HEADER_LENGTH,
    InferEndpoint,
    bytes_before_tensors,
)
from nereid_gateway.fronts.http.inference.infer_request import text_too_large
from nereid_gateway.fronts.http.inference.infer_response import InferResponseEncoder
from nereid_gateway.fronts.http.submission import InferSubmission
from nereid_gateway.plane.control.load_reports import LoadReports
from nereid_gateway.server.browser_origins import FORGED, is_forged
from nereid_gateway.server.call import JSON, TEXT, HttpCall
from nereid_gateway.server.call_tasks import CallTasks

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Coroutine

    from nereid_gateway.fronts.http.inference.request_template import RequestTemplate
    from nereid_gateway.plane.control.control_queue import ControlQueue
    from nereid_gateway.plane.data_plane import DataPlane
    from nereid_gateway.server.content_coding import ContentCoder
    from nereid_gateway.server.header_forwarding import HeaderForwarding

    Handle = Callable[[], Coroutine[Any, Any, None] | None]
    # A handler responds at once, or returns a coroutine to run as a task.
    Handler = Callable[[HttpCall, Route], Coroutine[Any, Any, None] | None]


def body_too_large(max_message_bytes: int, call: HttpCall, size: int, limit: int) -> str:
    """Return the text for a body beyond the limit; empty if binary tensors may make it so large.

    Triton limits only the JSON before them. Here such a body is at most as large as a gRPC message.
    """
    if bytes_before_tensors(call) > 0:
        if size <= max_message_bytes:
            return ""
        return (
            f"request size of {size} bytes with binary tensors exceeds the maximum allowed value of"
            f" {max(limit, max_message_bytes)} bytes. Use --grpc-max-input-size to increase the"
            " limit."
        )
    if call.headers.get(HEADER_LENGTH) == b"0":
        return (
            f"Raw input has a byte_size ({size} bytes) that exceeds the maximum allowed value of"
            f" {limit} bytes. Use --http-max-input-size to increase the limit."
        )
    return text_too_large(size, limit)


class HttpFront:
    """Dispatches HttpCalls to the handlers of their endpoints. An instance is a Dispatch."""

    def __init__(  # noqa: PLR0913 (two by keyword)
        self,
        data_plane: DataPlane,
        coder: ContentCoder,
        forwarding: HeaderForwarding | None = None,
        console: object | None = None,
        *,
        restricted_apis: Collection[str] = (),
        extra_endpoints: Collection[object] = (),
    ) -> None:
        """Make the handlers. console: has the handlers of the console's routes, or None.

        extra_endpoints: have the handlers of further routes.
        """
        control = data_plane.control
        loads = LoadReports(control)
        encoder = InferResponseEncoder()
        submission = InferSubmission(data_plane, forwarding)
        self._tasks = CallTasks()
        infer = InferEndpoint(submission, encoder, loads, self._tasks, coder)
        self._queue = data_plane.control_queue
        self._probes = data_plane.probe_queue
        groups: tuple[object, ...] = (
            infer,
            GenerateEndpoint(submission, encoder, loads, self._tasks, coder.max_bytes),
            HealthEndpoints(data_plane),
            MetadataEndpoints(data_plane),
            RepositoryEndpoints(control, data_plane),
            TraceAndLogEndpoints(control, data_plane),
            TrafficEndpoints(control, data_plane),
            TimelineEndpoint(data_plane),
            ExecutorEndpoints(control, restricted_apis),
            SharedMemoryEndpoints(data_plane.regions, data_plane),
        )
        self._has_console = console is not None
        if console is not None:
            groups = (*groups, console)
        groups = (*groups, *extra_endpoints)
        bound = bind_handlers((endpoint.handler for endpoint in ENDPOINTS), groups)
        self._handlers: dict[Endpoint, Handler] = {
            endpoint: bound[endpoint.handler] for endpoint in ENDPOINTS if endpoint.handler in bound
        }
        # Key: an infer target. Value: its decoder. The hot path needs no routing for known targets.
        self._decoders_by_target = infer.decoders_by_target
        self._infer = infer.infer
        # The HTTP server calls this function for a buffer before it reads a large body.
        self.allocate_body = infer.allocate_body

    def __call__(self, call: HttpCall) -> None:
        """Dispatch a call."""
        known_headers = call.known_headers
        if known_headers is not None and known_headers.endpoint_data is not None:
            template: RequestTemplate = known_headers.endpoint_data
            self._infer(call, template.decoder, template)
            return
        if self._has_console and is_forged(call.method, call.headers):
            call.fail(403, FORGED)
            return
        decoder = self._decoders_by_target.get(call.target)
        if decoder is not None and call.method == b"POST":
            self._infer(call, decoder)
            return
        route = resolve(call.target)
        endpoint = route.endpoint
        handler = self._handlers.get(endpoint)
        if handler is None:
            call.fail(404, "Not Found", TEXT)
        elif call.method not in endpoint.methods:
            call.refuse_method(TEXT if endpoint.refuses_in_text else JSON, *endpoint.methods)
        elif endpoint.is_control and is_forged(call.method, call.headers):
            call.fail(403, FORGED)
        elif endpoint.at_once:
            work = handler(call, route)
            if work is not None:
                self._tasks.spawn(call, work)
        else:
            queue = self._probes if endpoint.is_probe else self._queue
            handle = partial(handler, call, route)
            self._spawn(call, queue, handle, survives_disconnect=endpoint.survives_disconnect)

    def spawn_control(self, call: HttpCall, handle: Handle, *, survives_disconnect: bool) -> None:
        """Serve a control call in its turn.

        survives_disconnect: complete it even without the client.
        """
        if resolve(call.target).endpoint.is_control and is_forged(call.method, call.headers):
            call.fail(403, FORGED)
            return
        self._spawn(call, self._queue, handle, survives_disconnect=survives_disconnect)

    def _spawn(
        self, call: HttpCall, queue: ControlQueue, handle: Handle, *, survives_disconnect: bool
    ) -> None:
        async def serve() -> None:
            work = handle()
            if work is not None:
                await work

        # The queue uses the address only for clients without an authenticated principal.
        principal = principal_of(call.sender)
        begun = queue.run(
            call.peer,
            serve,
            principal,
            account=call.account,
            survives_disconnect=survives_disconnect,
        )
        self._tasks.spawn(call, begun)
