"""Table of the endpoints of all HTTP ports, and the lookup of a request's target in it. Pure.

Front, guards, managed ports and the reference of routes read an endpoint's row; nothing else lists
endpoints. As on Triton, versions are digits, and names anything without a slash. Clients quote
names (%20).
"""

# layout: compiled

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, NamedTuple
from urllib.parse import quote, unquote_to_bytes

from nereid.timeline import PATH as TIMELINE_PATH

# The ports on which clients call routes; a managed port has routes of its own that become these.
HTTP: Final = "http"
SAGEMAKER: Final = "sagemaker"
VERTEX_AI: Final = "vertex-ai"
METRICS: Final = "metrics"


@dataclass(frozen=True, eq=False)
class Endpoint:
    """One route of the HTTP ports: how it is called, who may call it, where, and what serves it."""

    # Class and method of the handler. Names, because the guards, which stand below the handlers,
    # read this table as well.
    handler: str
    # `{name}` is a member of Route; the part in brackets is optional.
    templates: tuple[str, ...]
    methods: tuple[bytes, ...]
    # The group of APIs that a right is for. Routes without one are open to everybody, since they
    # say nothing of the server.
    api: str
    # The route does not exist on any other port.
    ports: tuple[str, ...]
    # The route changes the server, or shows what other clients do: it is guarded by
    # --open-control-apis, and closed to the pages of other origins. The index and the status of
    # shared memory are readable by everybody.
    is_control: bool = False
    # The task of the call, if it has any, begins at once. Other calls wait for their client's turn.
    at_once: bool = False
    # Calls about readiness have a queue of their own beside the rest.
    is_probe: bool = False
    # A call that has begun is completed even if its client disconnects.
    goes_on: bool = False
    # The response to another method, 405, is plain text, as on Triton; elsewhere it is JSON.
    refuses_in_text: bool = False


class Route(NamedTuple):
    """An endpoint, and the names in the target of a request; empty: the target has no such name."""

    endpoint: Endpoint
    model: str = ""
    version: str = ""
    repository: str = ""
    # Kind of shared memory: "system" or "cuda".
    memory_kind: str = ""
    region: str = ""
    # File of the console's page.
    file: str = ""
    executor: str = ""


_GET: Final = (b"GET",)
_POST: Final = (b"POST",)
_MANAGED: Final = (HTTP, SAGEMAKER, VERTEX_AI)
_REDIRECTED: Final = (HTTP, VERTEX_AI)
_OWN: Final = (HTTP,)

# The endpoint of targets that no route has.
NOT_FOUND: Final = Endpoint("", (), (), "", ())
# The templates are tried in this order.
ENDPOINTS: Final = (
    Endpoint(
        "InferEndpoint.handle",
        ("/v2/models/{model}[/versions/{version}]/infer",),
        _POST,
        "inference",
        _MANAGED,
        at_once=True,
        refuses_in_text=True,
    ),
    Endpoint(
        "GenerateEndpoint.handle",
        ("/v2/models/{model}[/versions/{version}]/generate",),
        _POST,
        "inference",
        _MANAGED,
        at_once=True,
    ),
    Endpoint(
        "GenerateEndpoint.handle_stream",
        ("/v2/models/{model}[/versions/{version}]/generate_stream",),
        _POST,
        "inference",
        _MANAGED,
        at_once=True,
    ),
    Endpoint("MetadataEndpoints.server_metadata", ("/v2",), _GET, "metadata", _REDIRECTED),
    Endpoint(
        "HealthEndpoints.live",
        ("/v2/health/live",),
        _GET,
        "health",
        (*_MANAGED, METRICS),
        at_once=True,
        refuses_in_text=True,
    ),
    Endpoint(
        "HealthEndpoints.ready",
        ("/v2/health/ready",),
        _GET,
        "health",
        (*_MANAGED, METRICS),
        is_probe=True,
        refuses_in_text=True,
    ),
    Endpoint(
        "MetadataEndpoints.model_statistics",
        ("/v2/models/stats", "/v2/models/{model}[/versions/{version}]/stats"),
        _GET,
        "statistics",
        _REDIRECTED,
    ),
    Endpoint(
        "MetadataEndpoints.model_metadata",
        ("/v2/models/{model}[/versions/{version}]",),
        _GET,
        "metadata",
        _REDIRECTED,
    ),
    Endpoint(
        "HealthEndpoints.model_ready",
        ("/v2/models/{model}[/versions/{version}]/ready",),
        _GET,
        "health",
        _REDIRECTED,
        is_probe=True,
        refuses_in_text=True,
    ),
    Endpoint(
        "MetadataEndpoints.model_config",
        ("/v2/models/{model}[/versions/{version}]/config",),
        _GET,
        "model-config",
        _REDIRECTED,
    ),
    Endpoint(
        "TraceAndLogEndpoints.trace_setting",
        ("/v2/models/{model}/trace/setting", "/v2/trace/setting"),
        _GET + _POST,
        "trace",
        _OWN,
        is_control=True,
    ),
    Endpoint(
        "TraceAndLogEndpoints.logging",
        ("/v2/logging",),
        _GET + _POST,
        "logging",
        _OWN,
        is_control=True,
    ),
    Endpoint("TimelineEndpoint.timeline", (TIMELINE_PATH,), _GET, "trace", _OWN, is_control=True),
    Endpoint(
        "ExecutorEndpoints.drain",
        ("/v2/nereid/executors/{executor}/drain",),
        _POST,
        "model-repository",
        _OWN,
        is_control=True,
        goes_on=True,
    ),
    Endpoint(
        "RepositoryEndpoints.index",
        ("/v2/repository[/{repository}]/index",),
        _POST,
        "model-repository",
        _MANAGED,
    ),
    Endpoint(
        "RepositoryEndpoints.load",
        ("/v2/repository[/{repository}]/models/{model}/load",),
        _POST,
        "model-repository",
        _MANAGED,
        is_control=True,
        goes_on=True,
    ),
    Endpoint(
        "RepositoryEndpoints.unload",
        ("/v2/repository[/{repository}]/models/{model}/unload",),
        _POST,
        "model-repository",
        _MANAGED,
        is_control=True,
        goes_on=True,
    ),
    Endpoint(
        "SharedMemoryEndpoints.status",
        ("/v2/{memory_kind}sharedmemory[/region/{region}]/status",),
        _GET,
        "shared-memory",
        _REDIRECTED,
    ),
    Endpoint(
        "SharedMemoryEndpoints.register",
        ("/v2/{memory_kind}sharedmemory[/region/{region}]/register",),
        _POST,
        "shared-memory",
        _REDIRECTED,
        is_control=True,
    ),
    Endpoint(
        "SharedMemoryEndpoints.unregister",
        ("/v2/{memory_kind}sharedmemory[/region/{region}]/unregister",),
        _POST,
        "shared-memory",
        _REDIRECTED,
        is_control=True,
    ),
    Endpoint(
        "ConsoleEndpoints.page",
        ("/console[/static/{file}]",),
        _GET,
        "",
        _OWN,
        at_once=True,
        refuses_in_text=True,
    ),
    Endpoint("ConsoleEndpoints.facts", ("/console/facts",), _GET, "console", _OWN),
    Endpoint(
        "ConsoleEndpoints.stream",
        ("/console/stream",),
        _GET,
        "console",
        _OWN,
        at_once=True,
    ),
)

# Possessive, so that matching never backtracks: a slash or the end follows, or nothing fits.
_NAME: Final = "[^/]++"
_PATTERNS_BY_MEMBER: Final = {"version": "[0-9]++", "memory_kind": "system|cuda"}
_ABSOLUTE: Final = re.compile(r"https?://[^/]*", re.IGNORECASE)


def _compiled(template: str) -> re.Pattern[str]:
    pattern = template.replace("[", "(?:").replace("]", ")?")
    for member in Route._fields[1:]:
        named = f"(?P<{member}>{_PATTERNS_BY_MEMBER.get(member, _NAME)})"
        pattern = pattern.replace(f"{{{member}}}", named)
    return re.compile(pattern)


_OPTIONAL: Final = re.compile(r"\[([^{]*\{(\w+)\})\]")
_PATTERNS: Final = [
    (_compiled(text), endpoint, text) for endpoint in ENDPOINTS for text in endpoint.templates
]
_PERCENT: Final = re.compile("%(?![0-9A-Fa-f]{2})")


def resolve(target: bytes) -> Route:
    """Return the route of a request target; a query is ignored."""
    path = path_of(target)
    for pattern, endpoint, _ in _PATTERNS:
        if match := pattern.fullmatch(path):
            try:
                names = {member: name_of(text) for member, text in match.groupdict("").items()}
            except ValueError:
                # No model, region or file has such a name.
                break
            return Route(endpoint, **names)
    return Route(NOT_FOUND)


def name_of(segment: str) -> str:
    """Return the name in a segment of a path: UTF-8, of which clients may quote any byte.

    Raises:
        ValueError: the segment is not UTF-8, has a percent sign without two hexadecimal digits, or
            has a quoted slash, which would make a path of the name.
    """
    name = segment.encode("latin-1")
    if "%" in segment:
        if _PERCENT.search(segment):
            raise ValueError("a percent sign without two hexadecimal digits")
        name = unquote_to_bytes(name)
        if b"/" in name:
            raise ValueError("a slash in a name")
    return name.decode("utf-8")


def model_target(model: str, action: str) -> bytes:
    """Return the target of a route of a model; action is its last segment."""
    return f"/v2/models/{quote(model, safe='', errors='replace')}/{action}".encode()


def repository_target(model: str, action: str) -> bytes:
    """Return the target of the route that loads or unloads a model."""
    return f"/v2/repository/models/{quote(model, safe='', errors='replace')}/{action}".encode()


def template(target: bytes) -> str:
    """Return the route of a request target as a template, such as /v2/models/{model}/infer.

    The template is empty for a target that no route has.
    """
    path = path_of(target)
    for pattern, _, text in _PATTERNS:
        if match := pattern.fullmatch(path):
            names = match.groupdict("")
            return _OPTIONAL.sub(lambda part: part[1] if names[part[2]] else "", text)  # noqa: B023
    return ""


def path_of(target: bytes) -> str:
    """Return the path of a target in origin form or in absolute form, without its query."""
    text = target.decode("latin-1")
    path = text.partition("?")[0].partition("#")[0]
    if not path.startswith("/") and (match := _ABSOLUTE.match(path)):
        return path[match.end() :] or "/"
    return path
