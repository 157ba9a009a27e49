"""Exporter that sends spans by OTLP over HTTP, as protobuf, in the batch processor's thread."""

from __future__ import annotations

import gzip
import http.client
import logging
import random
import ssl
import threading
import time
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Any, Final

from google.protobuf.message import DecodeError
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from nereid.core.errors import cause_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opentelemetry.sdk.trace import ReadableSpan

    from nereid.observability.otel_variables import ExportOptions

# nereid.observability.otlp limits the lines below the logger "opentelemetry".
_log = logging.getLogger("opentelemetry.nereid")

# HTTP statuses after which the same spans may be sent again.
_RETRYABLE: Final = frozenset((429, 502, 503, 504))
_FIRST_PAUSE_S: Final = 1.0
_MAX_RESPONSE: Final = 65_536


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Makes redirects errors: a POST must not become a GET, and headers must not leave the host."""

    def redirect_request(self, *_: Any) -> None:
        return None


class HttpSpanExporter(SpanExporter):
    """Exporter that posts spans to a URL such as http://localhost:4318/v1/traces."""

    def __init__(self, url: str, options: ExportOptions) -> None:
        """Prepare TLS for the URL; raise OSError if the certificates cannot be used."""
        self._url = url
        self._options = options
        self._headers = {**dict(options.headers), "content-type": "application/x-protobuf"}
        if options.gzip:
            self._headers["content-encoding"] = "gzip"
        handlers: list[urllib.request.BaseHandler] = [_NoRedirects()]
        if url.startswith("https:"):
            context = ssl.create_default_context(cafile=options.certificate or None)
            if options.client_certificate:
                context.load_cert_chain(options.client_certificate, options.client_key or None)
            handlers.append(urllib.request.HTTPSHandler(context=context))
        self._opener = urllib.request.build_opener(*handlers)
        self._closed = threading.Event()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Send spans. After a temporary failure, send them again until the time limit."""
        body = encode_spans(spans).SerializeToString()
        if self._options.gzip:
            body = gzip.compress(body)
        until_s = time.monotonic() + self._options.timeout_s
        pause_s = _FIRST_PAUSE_S
        while not self._closed.is_set():
            failure, wanted_pause_s = self._post(body, until_s - time.monotonic())
            if not failure:
                return SpanExportResult.SUCCESS
            wait_s = wanted_pause_s or pause_s * random.uniform(0.8, 1.2)  # noqa: S311 (no secret)
            if wanted_pause_s is None or time.monotonic() + wait_s >= until_s:
                _log.warning("%d spans were not sent to %s: %s", len(spans), self._url, failure)
                break
            self._closed.wait(wait_s)
            pause_s *= 2
        return SpanExportResult.FAILURE

    def shutdown(self) -> None:
        """End a wait for the next attempt, and make no further attempt."""
        self._closed.set()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:  # noqa: ARG002 - of SpanExporter
        """Return True: this exporter buffers nothing."""
        return True

    def _post(self, body: bytes, timeout_s: float) -> tuple[str, float | None]:
        """Return the failure (empty: success), and the pause before the next attempt.

        0 leaves the pause to the caller. `None` means no other attempt.
        """
        request = urllib.request.Request(self._url, body, self._headers, method="POST")  # noqa: S310 (the URL is http or https)
        try:
            with self._opener.open(request, timeout=max(timeout_s, 0.001)) as response:
                _log_rejected(response.read(_MAX_RESPONSE))
                return "", None
        except urllib.error.HTTPError as error:
            with error:
                pause = error.headers.get("retry-after", "")
            wanted_s = float(pause) if pause.isdecimal() else 0.0
            return f"HTTP {error.code}", wanted_s if error.code in _RETRYABLE else None
        except (OSError, http.client.HTTPException) as error:
            return cause_of(error), 0.0


def _log_rejected(body: bytes) -> None:
    try:
        partial = ExportTraceServiceResponse.FromString(body).partial_success
    except DecodeError:
        return
    if partial.rejected_spans:
        _log.warning("%d spans were rejected: %s", partial.rejected_spans, partial.error_message)
