"""The front of the HTTP port: finds the endpoint of each call, by the table in HttpFront; routes.py
has that of who may call it.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from nereid_gateway.core.access.principal import principal_of
from nereid_gateway.core.routes import RULES, Route, RouteKind, resolve
from nereid_gateway.fronts.http.endpoints.executors import ExecutorEndpoints
from nereid_gateway.fronts.http.endpoints.generate import GenerateEndpoint
from nereid_gateway.fronts.http.endpoints.health import HealthEndpoints
from nereid_gateway.fronts.http.endpoints.metadata import MetadataEndpoints
from nereid_gateway.fronts.http.endpoints.repository import RepositoryEndpoints
from nereid_gateway.fronts.http.endpoints.shared_memory import SharedMemoryEndpoints
from nereid_gateway.fronts.http.endpoints.timeline import TimelineEndpoint
from nereid_gateway.fronts.http.endpoints.trace_and_log import TraceAndLogEndpoints
from nereid_gateway.fronts.http.inference.infer import InferEndpoint
from nereid_gateway.fronts.http.inference.infer_response import InferResponseEncoder
from nereid_gateway.fronts.http.inference.request_template import RequestTemplate
from nereid_gateway.fronts.http.submission import InferSubmission
from nereid_gateway.plane.control.load_reports import LoadReports
from nereid_gateway.server.browser_origins import FORGED, is_forged
from nereid_gateway.server.call import JSON, TEXT, HttpCall
from nereid_gateway.server.call_tasks import CallTasks

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Coroutine

    from nereid_gateway.extras.console.endpoints import ConsoleEndpoints
    from nereid_gateway.plane.control.control_queue import ControlQueue
    from nereid_gateway.plane.data_plane import DataPlane
    from nereid_gateway.server.content_coding import ContentCoder
    from nereid_gateway.server.header_forwarding import HeaderForwarding

    Handle = Callable[[], Coroutine[Any, Any, None] | None]
    # Responds at once, or returns what is to run as a task.
    Handler = Callable[[HttpCall, Route], Coroutine[Any, Any, None] | None]

# Triton's text for a body that is too large (HttpLimits.body_too_large).
BODY_TOO_LARGE: Final = (
    "request JSON size of {size} bytes exceeds the maximum allowed input size of {limit} bytes."
    " Use --http-max-input-size to increase the limit."
)


# Their tasks, if they have any, begin at once; others wait for their turn, those about readiness
# beside the rest.
_AT_ONCE: Final = frozenset(
    {
        RouteKind.INFER,
        RouteKind.GENERATE,
        RouteKind.GENERATE_STREAM,
        RouteKind.LIVE,
        RouteKind.CONSOLE_PAGE,
        RouteKind.CONSOLE_STREAM,
    }
)
_PROBES: Final = frozenset({RouteKind.READY, RouteKind.MODEL_READY})
# These go on if the client disconnects.
_GO_ON: Final = frozenset(
    {RouteKind.REPOSITORY_LOAD, RouteKind.REPOSITORY_UNLOAD, RouteKind.EXECUTOR_DRAIN}
)


class Endpoint(NamedTuple):
    """The handler of a route, and the content type of the 405 for methods that it does not take."""

    handle: Handler
    refusal_type: bytes = JSON


class HttpFront:
    """Dispatches HttpCalls: calling it is dispatching one."""

    def __init__(
        self,
        data_plane: DataPlane,
        coder: ContentCoder,
        forwarding: HeaderForwarding | None = None,
        console: ConsoleEndpoints | None = None,
        *,
        restricted_apis: Collection[str] = (),
    ) -> None:
        """console: None: it is not served. restricted_apis: those that require a header."""
        control = data_plane.control
        loads = LoadReports(control)
        encoder = InferResponseEncoder()
        submission = InferSubmission(data_plane, forwarding)
        self._tasks = CallTasks()
        infer = InferEndpoint(submission, encoder, loads, self._tasks, coder)
        self._queue = data_plane.control_queue
        self._probes = data_plane.probe_queue
        generate = GenerateEndpoint(submission, encoder, loads, self._tasks)
        health = HealthEndpoints(data_plane)
        metadata = MetadataEndpoints(data_plane)
        repository = RepositoryEndpoints(control, data_plane)
        settings = TraceAndLogEndpoints(control, data_plane)
        shared_memory = SharedMemoryEndpoints(data_plane.regions, data_plane)
        self._endpoints: dict[RouteKind, Endpoint] = {
            RouteKind.INFER: Endpoint(infer.handle, TEXT),
            RouteKind.GENERATE: Endpoint(generate.handle),
            RouteKind.GENERATE_STREAM: Endpoint(generate.handle_stream),
            RouteKind.LIVE: Endpoint(health.live, TEXT),
            RouteKind.READY: Endpoint(health.ready, TEXT),
            RouteKind.MODEL_READY: Endpoint(health.model_ready, TEXT),
            RouteKind.SERVER_METADATA: Endpoint(metadata.server_metadata),
            RouteKind.MODEL_METADATA: Endpoint(metadata.model_metadata),
            RouteKind.MODEL_CONFIG: Endpoint(metadata.model_config),
            RouteKind.MODEL_STATISTICS: Endpoint(metadata.model_statistics),
            RouteKind.REPOSITORY_INDEX: Endpoint(repository.index),
            RouteKind.REPOSITORY_LOAD: Endpoint(repository.load),
            RouteKind.REPOSITORY_UNLOAD: Endpoint(repository.unload),
            RouteKind.TRACE_SETTING: Endpoint(settings.trace_setting),
            RouteKind.LOGGING: Endpoint(settings.logging),
            RouteKind.TIMELINE: Endpoint(TimelineEndpoint(data_plane).timeline),
            RouteKind.EXECUTOR_DRAIN: Endpoint(ExecutorEndpoints(control, restricted_apis).drain),
            RouteKind.SHARED_MEMORY_STATUS: Endpoint(shared_memory.status),
            RouteKind.SHARED_MEMORY_REGISTER: Endpoint(shared_memory.register),
            RouteKind.SHARED_MEMORY_UNREGISTER: Endpoint(shared_memory.unregister),
        }
        # A console makes browsers of this server's clients.
        self._has_console = console is not None
        if console is not None:
            self._endpoints[RouteKind.CONSOLE_PAGE] = Endpoint(console.page, TEXT)
            self._endpoints[RouteKind.CONSOLE_FACTS] = Endpoint(console.facts)
            self._endpoints[RouteKind.CONSOLE_STREAM] = Endpoint(console.stream)
        # Hot path: an infer target that was seen before is found by its bytes.
        self._decoders_by_target = infer.decoders_by_target
        self._infer, self._infer_again = infer.infer, infer.infer_again
        # Where the HTTP server puts the body of a large request.
        self.allocate_body = infer.allocate_body

    def __call__(self, call: HttpCall) -> None:
        if call.known_headers is not None:
            template = call.known_headers.derived
            if isinstance(template, RequestTemplate):
                self._infer_again(call, template)
                return
        if self._has_console and is_forged(call.method, call.headers):
            call.fail(403, FORGED)
            return
        decoder = self._decoders_by_target.get(call.target)
        if decoder is not None and call.method == b"POST":
            self._infer(call, decoder)
            return
        route = resolve(call.target)
        endpoint = self._endpoints.get(route.kind)
        if endpoint is None:
            call.fail(404, "Not Found", TEXT)
            return
        rule = RULES[route.kind]
        if call.method not in rule.methods:
            call.refuse_method(endpoint.refusal_type, *rule.methods)
        elif rule.is_control and is_forged(call.method, call.headers):
            call.fail(403, FORGED)
        elif route.kind in _AT_ONCE:
            work = endpoint.handle(call, route)
            if work is not None:
                self._tasks.spawn(call, work)
        else:
            queue = self._probes if route.kind in _PROBES else self._queue
            handle = partial(endpoint.handle, call, route)
            self._spawn(call, queue, handle, goes_on=route.kind in _GO_ON)

    def spawn_control(self, call: HttpCall, handle: Handle, *, goes_on: bool) -> None:
        """Serve a control call when it is its client's turn. goes_on: if it has begun by the time
        that the client disconnects.
        """
        if RULES[resolve(call.target).kind].is_control and is_forged(call.method, call.headers):
            call.fail(403, FORGED)
            return
        self._spawn(call, self._queue, handle, goes_on=goes_on)

    def _spawn(self, call: HttpCall, queue: ControlQueue, handle: Handle, *, goes_on: bool) -> None:
        async def serve() -> None:
            work = handle()
            if work is not None:
                await work

        # Whoever is authenticated counts as the client.
        principal = principal_of(call.sender)
        begun = queue.run(call.peer, serve, principal, account=call.account, goes_on=goes_on)
        self._tasks.spawn(call, begun)
