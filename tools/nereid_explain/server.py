"""Asks a mesh over HTTP, with requests that any client may send. The calls block."""

from __future__ import annotations

import argparse
import json
import ssl
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, replace
from http.client import HTTPException
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlsplit

from nereid.cli.time_limit import PIECES, call_within
from nereid.cli.wrong_port import HTTP, METRICS, wrong_port
from nereid.core.files.json_document import MAX_BYTES, MAX_ERROR_BYTES, error_text, parse_document
from nereid.core.terminal import print_error
from nereid.facts.mesh_facts import ConfigFacts, MeshFacts, VersionFacts
from nereid.observability.samples import Samples

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nereid.cli.command_parser import CommandParser

METRICS_PORT: Final = 8002
_MAX_BYTES: Final = 256 << 20
_REFUSED: Final = frozenset({401, 403})
_OK: Final = 200
_JSON: Final = {"Content-Type": "application/json"}


class CannotAskError(Exception):
    """Raised if a mesh cannot be asked, or responds with an error; the text says why."""


@dataclass(frozen=True)
class Server:
    """A gateway to ask, at http://host:port; metrics_url is a whole URL."""

    url: str
    metrics_url: str
    headers: Mapping[str, str]
    timeout_s: float
    # Certificates of a private authority; "" means the system's.
    ca_file: str
    # The command's name, if each request is printed on stderr; else "".
    verbose_as: str = ""

    def look(self, model: str, earlier: MeshFacts | None = None) -> MeshFacts:
        """Return what the gateway says, with counters since `earlier`. May raise CannotAskError."""
        entries = self.index()
        ready, _ = self._fetch("GET", f"{self.url}/v2/health/ready")
        versions = tuple(
            self._version(model, entry) for entry in entries if entry.get("name") == model
        )
        metrics, error = None, ""
        try:
            metrics = self.samples()
        except CannotAskError as refused:
            error = str(refused)
        names = tuple(sorted({str(entry.get("name", "")) for entry in entries}))
        warnings, problem = self._traffic(model)
        return MeshFacts(
            model, ready == _OK, versions, names, metrics, error, warnings, problem, earlier
        )

    def index(self) -> list[dict[str, Any]]:
        """Return the entries of the repository index. May raise CannotAskError."""
        url = f"{self.url}/v2/repository/index"
        # Other servers than Triton refuse a request without JSON.
        status, body = self._fetch("POST", url, MAX_BYTES + 1, b"{}")
        if status != _OK:
            text = f"responds with {status}: {error_text(body)}"
            raise CannotAskError(self._failure(url, text))
        entries: list[dict[str, Any]] = _parsed(url, body, list)
        if not all(isinstance(entry, dict) for entry in entries):
            raise CannotAskError(f"{url} responds with a list of something else than objects")
        return entries

    def samples(self) -> Samples:
        """Return the samples of the metrics page. May raise CannotAskError."""
        status, body = self._fetch("GET", self.metrics_url)
        if status != _OK:
            raise CannotAskError(self._failure(self.metrics_url, f"responds with {status}"))
        return Samples(body)

    def config(self, model: str, version: str) -> ConfigFacts | None:
        """Return the configuration of a loaded version; `None` if it has none any more."""
        document = self._document(f"{self._path(model, version)}/config?sources=true")
        return None if document is None else ConfigFacts.of_document(document)

    def read(self, path: str, max_bytes: int = _MAX_BYTES, content_type: str = "") -> bytes:
        """Return the response body; raise CannotAskError on failures, and beyond max_bytes.

        content_type: the only one that is read, if not empty.
        """
        url = self.url + path
        status, body = self._fetch("GET", url, max_bytes + 1, content_type=content_type)
        if status != _OK:
            text = f"responds with {status}: {error_text(body)}"
            raise CannotAskError(self._failure(url, text))
        if len(body) > max_bytes:
            raise CannotAskError(f"{url} responds with more than {max_bytes} bytes")
        return body

    def call(self, method: str, path: str, document: object = None) -> dict[str, Any]:
        """Return the JSON object that a call responds with. document: the body, if not `None`.

        Raises CannotAskError with the server's text.
        """
        url = self.url + path
        data = None if document is None else json.dumps(document).encode()
        status, body = self._fetch(method, url, MAX_BYTES + 1, data)
        if status != _OK:
            text = f"responds with {status}: {error_text(body)}".rstrip(": ")
            # Gateways respond with an error's text.
            raise CannotAskError(f"{url} {text}" if body else self._failure(url, text))
        response: dict[str, Any] = _parsed(url, body, dict)
        return response

    def _traffic(self, model: str) -> tuple[tuple[str, ...] | None, str]:
        """Return the traffic's warnings, `None` without the right to see them; and the shadow's."""
        path = f"/v2/repository/models/{quote(model, safe='')}"
        try:
            traffic, shadow = (self.call("GET", f"{path}/{each}") for each in ("traffic", "shadow"))
        except CannotAskError:
            return None, ""
        warnings = traffic.get("warnings")
        texts = tuple(map(str, warnings)) if isinstance(warnings, list) else ()
        return texts, str(shadow.get("problem") or "")

    def _version(self, model: str, entry: Mapping[str, Any]) -> VersionFacts:
        number = str(entry.get("version", ""))
        state, reason = str(entry.get("state", "")), str(entry.get("reason", ""))
        if not number:
            return VersionFacts(number, state, reason)
        path = self._path(model, number)
        ready, _ = self._fetch("GET", f"{path}/ready")
        facts = VersionFacts(number, state, reason, ready == _OK)
        if not facts.in_memory:
            # Do not ask for the configuration, because that request may load the version.
            return facts
        config, statistics = self.config(model, number), self._document(f"{path}/stats")
        stats = None if statistics is None else statistics.get("model_stats") or None
        return replace(
            facts,
            config=config,
            statistics=None if stats is None else stats[0],
        )

    def _path(self, model: str, version: str) -> str:
        return f"{self.url}/v2/models/{quote(model, safe='')}/versions/{version}"

    def _document(self, url: str) -> dict[str, Any] | None:
        """Return a JSON document, or `None` if there is none (the version may not be ready)."""
        status, body = self._fetch("GET", url, MAX_BYTES + 1)
        if status in _REFUSED:
            raise CannotAskError(f"{url} responds with {status}: {error_text(body)}")
        if status != _OK:
            return None
        document: dict[str, Any] = _parsed(url, body, dict)
        return document

    def _fetch(
        self,
        method: str,
        url: str,
        max_bytes: int = _MAX_BYTES,
        data: bytes | None = None,
        content_type: str = "",
    ) -> tuple[int, bytes]:
        if self.verbose_as:
            print_error(self.verbose_as, f"{method} {url}")
        if data is None and method == "POST":
            data = b""
        request = urllib.request.Request(  # noqa: S310 - server_of() allows only http and https
            url, data, {**_JSON, **self.headers} if data else {**self.headers}, method=method
        )
        context = None
        if url.startswith("https:"):
            context = ssl.create_default_context(cafile=self.ca_file or None)

        def exchange() -> tuple[int, bytes]:
            try:
                with urllib.request.urlopen(  # noqa: S310
                    request, timeout=self.timeout_s, context=context
                ) as response:
                    found = response.headers.get_content_type()
                    if content_type and found != content_type:
                        text = f"responds with {found} instead of {content_type}"
                        raise CannotAskError(self._failure(url, text))
                    return response.status, response.read(max_bytes)
            except urllib.error.HTTPError as error:
                with error:
                    return error.code, error.read(MAX_ERROR_BYTES)

        try:
            return call_within(PIECES * self.timeout_s, exchange)
        except (OSError, HTTPException) as error:
            reason = getattr(error, "reason", error)
            text = f"cannot be asked: {reason}"
            raise CannotAskError(self._failure(url, text)) from error

    def _failure(self, url: str, text: str) -> str:
        """Return what went wrong; the wrong port is named as such."""
        parts = urlsplit(url)
        if parts.scheme != "http" or not parts.port:
            return f"{url} {text}"
        wanted = METRICS if url == self.metrics_url else HTTP
        return wrong_port(parts.netloc, wanted) or f"{url} {text}"


def add_server_arguments(parser: CommandParser, timeout_s: float) -> None:
    """Add the flags that say which server to ask; timeout_s: default of --timeout, in seconds."""
    add = parser.add_argument
    add(
        "-u", "--url", default="localhost:8000", metavar="HOST:PORT",
        help="a gateway's HTTP port, or an http or https URL (default: localhost:8000)",
    )  # fmt: skip
    add("-v", "--verbose", action="store_true", help="print each request on stderr")
    add(
        "-H", "--header", action="append", default=[], metavar="'NAME: VALUE'",
        help="send this header, such as 'Authorization: Bearer ...'; may be repeated",
    )  # fmt: skip
    protocol = add(
        "-i", "--protocol", type=_protocol, default="http", metavar="http",
        help="http: what is asked here has no gRPC method",
    )  # fmt: skip
    ca_file = add(
        "--ca-file", "--ssl-grpc-root-certifications-file", default="", metavar="PATH",
        help="certificates that https is checked against",
    )  # fmt: skip
    timeout = add(
        "--timeout", type=float, default=timeout_s, metavar="S",
        help=f"for each part of a response; a whole one has ten times (default: {timeout_s:g})",
    )  # fmt: skip
    parser.hide(protocol, ca_file, timeout)


def server_of(
    parser: argparse.ArgumentParser, given: argparse.Namespace, metrics_url: str = ""
) -> Server:
    """Return the server that the arguments name, or exit; metrics_url "" means port 8002."""
    try:
        base, headers = _base(given.url), _headers_of(given.header)
        metrics = _metrics_url(base, metrics_url)
    except ValueError as error:
        parser.error(str(error))
    return Server(
        base, metrics, headers, given.timeout, given.ca_file, parser.prog if given.verbose else ""
    )


def add_metrics_argument(parser: CommandParser) -> None:
    """Add the flag that says where the metrics page is."""
    parser.add_argument(
        "--metrics-url", default="", metavar="HOST:PORT",
        help="its metrics port, or the page's URL (default: port 8002 of the same host)",
    )  # fmt: skip


def record_for(program: str, seconds: float) -> float:
    """Wait, after a line that says how long; return the seconds that passed until Ctrl-C."""
    print_error(program, f"recording for {seconds:g} s; Ctrl-C ends it with what there is")
    begin = time.monotonic()
    try:
        time.sleep(seconds)
    except KeyboardInterrupt:
        return time.monotonic() - begin
    return seconds


def _protocol(text: str) -> str:
    if text.lower() != "http":
        raise argparse.ArgumentTypeError("expected http: what is asked here has no gRPC method")
    return "http"


def _metrics_url(base: str, metrics_url: str) -> str:
    if metrics_url:
        parts = urlsplit(_base(metrics_url))
        return parts.geturl() if parts.path else f"{parts.geturl()}/metrics"
    host = urlsplit(base).hostname or ""
    host = f"[{host}]" if ":" in host else host
    return f"http://{host}:{METRICS_PORT}/metrics"


def _headers_of(texts: Sequence[str]) -> dict[str, str]:
    headers = {}
    for text in texts:
        name, colon, value = text.partition(":")
        if not (colon and name.strip()):
            raise ValueError(f"--header: '{text}': expected NAME: VALUE")
        headers[name.strip()] = value.strip()
    return headers


def _base(url: str) -> str:
    base = (url if "://" in url else f"http://{url}").rstrip("/")
    parts = urlsplit(base)
    # parts.port raises ValueError if the port is not valid.
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.port == 0:
        raise ValueError(f"'{url}': expected host:port, or an http or https URL")
    return base


def _parsed(url: str, body: bytes, kind: type) -> Any:
    try:
        document = parse_document(body)
    except ValueError as error:
        raise CannotAskError(
            f"{url} responds with something that is no JSON of a mesh: {error}"
        ) from error
    if not isinstance(document, kind):
        raise CannotAskError(f"{url} responds with JSON that is no {kind.__name__}")
    return document
