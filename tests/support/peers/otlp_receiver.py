"""An OTLP receiver: a real server, for gRPC and for HTTP, that keeps the spans which services
export.
"""

from __future__ import annotations

import gzip
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.proto.trace.v1 import trace_pb2

WAIT_S = 20.0


class Seen(NamedTuple):
    """One span as it arrived."""

    service: str
    name: str
    trace: str
    id: str
    parent: str
    start_ns: int
    end_ns: int
    attributes: dict[str, Any]
    links: list[tuple[str, str]]
    # The text of an error status; None: no error.
    error: str | None
    # Kind of a span, such as "server".
    kind: str
    # The text of W3C's header.
    state: str
    resource: dict[str, Any]


class Tree:
    """The spans of one trace."""

    def __init__(self, spans: list[Seen]) -> None:
        self.spans = spans
        self._ids = {span.id: span for span in spans}
        assert len(self._ids) == len(spans), "a span came twice"

    def named(self, name: str) -> list[Seen]:
        return sorted((s for s in self.spans if s.name == name), key=lambda span: span.start_ns)

    def one(self, name: str) -> Seen:
        (span,) = self.named(name)
        return span

    def parent(self, span: Seen) -> Seen | None:
        return self._ids.get(span.parent)

    def roots(self) -> list[Seen]:
        """The spans whose parents are not here."""
        return [span for span in self.spans if span.parent not in self._ids]

    def shape(self) -> set[tuple[str, str, str]]:
        """Service, name and the parent's name of each span."""
        found = set()
        for span in self.spans:
            parent = self.parent(span)
            found.add((span.service, span.name, parent.name if parent else ""))
        return found


class Receiver(trace_service_pb2_grpc.TraceServiceServicer):
    """A receiver whose spans tests can wait for."""

    def __init__(self) -> None:
        self._arrived = threading.Condition()
        self._spans: list[Seen] = []
        # For gRPC, and for HTTP.
        self.url = ""
        self.http_url = ""
        # Metadata of each call.
        self.headers: list[dict[str, str]] = []
        # Responses to give first over HTTP: a status, and the value of Retry-After.
        self.http_refusals: list[tuple[int, str]] = []
        # The status to refuse with; while responses is cleared, it does not reply.
        self.refusal: grpc.StatusCode | None = None
        self.responses = threading.Event()
        self.responses.set()
        # Set by the first call.
        self.called = threading.Event()

    def Export(self, request: Any, context: Any) -> Any:  # noqa: N802 - gRPC's name
        self.headers.append(dict(context.invocation_metadata()))
        self.called.set()
        if self.refusal is not None:
            context.abort(self.refusal, "no")
        self.responses.wait(WAIT_S)
        return self.add(request)

    def add(self, request: Any) -> Any:
        """Keep an export's spans; returns the response."""
        with self._arrived:
            for each in request.resource_spans:
                resource = _plain(each.resource.attributes)
                for scope in each.scope_spans:
                    self._spans.extend(_seen(resource, span) for span in scope.spans)
            self._arrived.notify_all()
        return trace_service_pb2.ExportTraceServiceResponse()

    def trees(self) -> dict[str, Tree]:
        """Return the spans that have arrived up to now, by trace id."""
        by_trace: dict[str, list[Seen]] = defaultdict(list)
        with self._arrived:
            for span in self._spans:
                by_trace[span.trace].append(span)
        return {trace: Tree(spans) for trace, spans in by_trace.items()}

    def wait(self, condition: Callable[[dict[str, Tree]], object]) -> dict[str, Tree]:
        """Wait until the spans fulfil a condition."""
        with self._arrived:
            done = self._arrived.wait_for(lambda: condition(self.trees()), WAIT_S)
        seen = {trace: sorted(tree.shape()) for trace, tree in self.trees().items()}
        assert done, f"after {WAIT_S} s there are {seen}"
        return self.trees()


def _plain(attributes: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in attributes}


def _seen(resource: dict[str, Any], span: Any) -> Seen:
    return Seen(
        resource["service.name"],
        span.name,
        span.trace_id.hex(),
        span.span_id.hex(),
        span.parent_span_id.hex(),
        span.start_time_unix_nano,
        span.end_time_unix_nano,
        _plain(span.attributes),
        [(link.trace_id.hex(), link.span_id.hex()) for link in span.links],
        span.status.message if span.status.code == 2 else None,
        trace_pb2.Span.SpanKind.Name(span.kind).removeprefix("SPAN_KIND_").lower(),
        span.trace_state,
        resource,
    )


def _http_server(it: Receiver) -> ThreadingHTTPServer:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            it.headers.append({name.lower(): value for name, value in self.headers.items()})
            it.called.set()
            if it.http_refusals:
                status, pause = it.http_refusals.pop(0)
                self.send_response(status)
                self.send_header("retry-after", pause)
                self.send_header("location", "/elsewhere")
                self.end_headers()
                return
            if self.headers.get("content-encoding") == "gzip":
                body = gzip.decompress(body)
            request = trace_service_pb2.ExportTraceServiceRequest.FromString(body)
            known = self.path == "/v1/traces"
            response = it.add(request).SerializeToString() if known else b""
            self.send_response(200 if known else 404)
            self.send_header("content-length", str(len(response)))
            self.end_headers()
            self.wfile.write(response)

        def log_message(self, *_: object) -> None:
            pass

    return ThreadingHTTPServer(("127.0.0.1", 0), Handler)


@contextmanager
def receiver() -> Iterator[Receiver]:
    it = Receiver()
    # wait() calls trees() while it holds the lock: Condition's own lock is reentrant.
    server = grpc.server(ThreadPoolExecutor(2))
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(it, server)  # type: ignore[no-untyped-call]
    it.url = f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    http_server = _http_server(it)
    it.http_url = f"http://127.0.0.1:{http_server.server_port}/v1/traces"
    serving = threading.Thread(target=http_server.serve_forever, args=(0.01,), daemon=True)
    serving.start()
    try:
        yield it
    finally:
        http_server.shutdown()
        http_server.server_close()
        serving.join()
        server.stop(None).wait()
