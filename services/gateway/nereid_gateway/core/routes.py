"""The one table of the routes of all HTTP ports, and which of them the target of a request names.
Pure.

As on Triton, versions are digits, and names anything without a slash. Clients quote names (%20).
"""

from __future__ import annotations

import re
from enum import Enum
from typing import Final, NamedTuple
from urllib.parse import quote, unquote_to_bytes

from nereid.timeline import PATH as TIMELINE_PATH


class RouteKind(Enum):
    """The routes, by what they do."""

    NOT_FOUND = "not found"
    SERVER_METADATA = "server metadata"
    LIVE = "live"
    READY = "ready"
    MODEL_METADATA = "model metadata"
    MODEL_READY = "model ready"
    MODEL_CONFIG = "model config"
    MODEL_STATISTICS = "model statistics"
    INFER = "infer"
    GENERATE = "generate"
    GENERATE_STREAM = "generate stream"
    REPOSITORY_INDEX = "repository index"
    REPOSITORY_LOAD = "repository load"
    REPOSITORY_UNLOAD = "repository unload"
    LOGGING = "the logging extension"
    TRACE_SETTING = "the trace extension"
    TIMELINE = "timeline"
    EXECUTOR_DRAIN = "executor drain"
    SHARED_MEMORY_STATUS = "shared memory status"
    SHARED_MEMORY_REGISTER = "shared memory register"
    SHARED_MEMORY_UNREGISTER = "shared memory unregister"
    CONSOLE_PAGE = "console page"
    CONSOLE_FACTS = "console facts"
    CONSOLE_STREAM = "console stream"


class Route(NamedTuple):
    """A route and what the target names; empty: nothing."""

    kind: RouteKind
    model: str = ""
    version: str = ""
    repository: str = ""
    # Of shared memory: "system" or "cuda".
    memory_kind: str = ""
    region: str = ""
    # Of the console's page.
    file: str = ""
    executor: str = ""


# The ports on which clients call routes; a managed port has routes of its own that become these.
HTTP: Final = "http"
SAGEMAKER: Final = "sagemaker"
VERTEX_AI: Final = "vertex-ai"
METRICS: Final = "metrics"

_GET: Final = (b"GET",)
_POST: Final = (b"POST",)
_MANAGED: Final = (HTTP, SAGEMAKER, VERTEX_AI)
_REDIRECTED: Final = (HTTP, VERTEX_AI)
_OWN: Final = (HTTP,)


class RouteRule(NamedTuple):
    """What a route is called, who may call it, and where. In templates `{name}` is a member of
    Route, and what is in brackets may be missing.
    """

    kind: RouteKind
    templates: tuple[str, ...]
    methods: tuple[bytes, ...]
    # The group of APIs that a right is for; empty: anybody's, as it says nothing of the server.
    api: str
    # On any other it does not exist.
    ports: tuple[str, ...]
    # It changes the server, or shows what other clients do: guarded by --open-control-apis, and
    # closed to the pages of other origins. What is there (index, status) everybody may read.
    is_control: bool = False


# Tried in this order.
_RULES: Final = (
    RouteRule(
        RouteKind.INFER,
        ("/v2/models/{model}[/versions/{version}]/infer",),
        _POST,
        "inference",
        _MANAGED,
    ),
    RouteRule(
        RouteKind.GENERATE,
        ("/v2/models/{model}[/versions/{version}]/generate",),
        _POST,
        "inference",
        _MANAGED,
    ),
    RouteRule(
        RouteKind.GENERATE_STREAM,
        ("/v2/models/{model}[/versions/{version}]/generate_stream",),
        _POST,
        "inference",
        _MANAGED,
    ),
    RouteRule(RouteKind.SERVER_METADATA, ("/v2",), _GET, "metadata", _REDIRECTED),
    RouteRule(RouteKind.LIVE, ("/v2/health/live",), _GET, "health", (*_MANAGED, METRICS)),
    RouteRule(RouteKind.READY, ("/v2/health/ready",), _GET, "health", (*_MANAGED, METRICS)),
    RouteRule(
        RouteKind.MODEL_STATISTICS,
        ("/v2/models/stats", "/v2/models/{model}[/versions/{version}]/stats"),
        _GET,
        "statistics",
        _REDIRECTED,
    ),
    RouteRule(
        RouteKind.MODEL_METADATA,
        ("/v2/models/{model}[/versions/{version}]",),
        _GET,
        "metadata",
        _REDIRECTED,
    ),
    RouteRule(
        RouteKind.MODEL_READY,
        ("/v2/models/{model}[/versions/{version}]/ready",),
        _GET,
        "health",
        _REDIRECTED,
    ),
    RouteRule(
        RouteKind.MODEL_CONFIG,
        ("/v2/models/{model}[/versions/{version}]/config",),
        _GET,
        "model-config",
        _REDIRECTED,
    ),
    RouteRule(
        RouteKind.TRACE_SETTING,
        ("/v2/models/{model}/trace/setting", "/v2/trace/setting"),
        _GET + _POST,
        "trace",
        _OWN,
        is_control=True,
    ),
    RouteRule(RouteKind.LOGGING, ("/v2/logging",), _GET + _POST, "logging", _OWN, is_control=True),
    RouteRule(RouteKind.TIMELINE, (TIMELINE_PATH,), _GET, "trace", _OWN, is_control=True),
    RouteRule(
        RouteKind.EXECUTOR_DRAIN,
        ("/v2/nereid/executors/{executor}/drain",),
        _POST,
        "model-repository",
        _OWN,
        is_control=True,
    ),
    RouteRule(
        RouteKind.REPOSITORY_INDEX,
        ("/v2/repository[/{repository}]/index",),
        _POST,
        "model-repository",
        _MANAGED,
    ),
    RouteRule(
        RouteKind.REPOSITORY_LOAD,
        ("/v2/repository[/{repository}]/models/{model}/load",),
        _POST,
        "model-repository",
        _MANAGED,
        is_control=True,
    ),
    RouteRule(
        RouteKind.REPOSITORY_UNLOAD,
        ("/v2/repository[/{repository}]/models/{model}/unload",),
        _POST,
        "model-repository",
        _MANAGED,
        is_control=True,
    ),
    RouteRule(
        RouteKind.SHARED_MEMORY_STATUS,
        ("/v2/{memory_kind}sharedmemory[/region/{region}]/status",),
        _GET,
        "shared-memory",
        _REDIRECTED,
    ),
    RouteRule(
        RouteKind.SHARED_MEMORY_REGISTER,
        ("/v2/{memory_kind}sharedmemory[/region/{region}]/register",),
        _POST,
        "shared-memory",
        _REDIRECTED,
        is_control=True,
    ),
    RouteRule(
        RouteKind.SHARED_MEMORY_UNREGISTER,
        ("/v2/{memory_kind}sharedmemory[/region/{region}]/unregister",),
        _POST,
        "shared-memory",
        _REDIRECTED,
        is_control=True,
    ),
    RouteRule(RouteKind.CONSOLE_PAGE, ("/console[/static/{file}]",), _GET, "", _OWN),
    RouteRule(RouteKind.CONSOLE_FACTS, ("/console/facts",), _GET, "console", _OWN),
    RouteRule(RouteKind.CONSOLE_STREAM, ("/console/stream",), _GET, "console", _OWN),
)
RULES: Final = {rule.kind: rule for rule in _RULES}

# Without going back: a slash or the end follows, or nothing fits.
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
    (_compiled(text), rule.kind, text) for rule in RULES.values() for text in rule.templates
]
_PERCENT: Final = re.compile("%(?![0-9A-Fa-f]{2})")


def resolve(target: bytes) -> Route:
    """The route of a request target; a query is ignored."""
    path = path_of(target)
    for pattern, kind, _ in _PATTERNS:
        if match := pattern.fullmatch(path):
            try:
                names = {member: name_of(text) for member, text in match.groupdict("").items()}
            except ValueError:
                # Nothing has such a name.
                break
            return Route(kind, **names)
    return Route(RouteKind.NOT_FOUND)


def name_of(segment: str) -> str:
    """The name that a segment of a path has: UTF-8, of which clients may quote any byte.

    Raises:
        ValueError: it is no UTF-8, a quoted byte has no two digits, or a slash is quoted: it would
            be a path.
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
    """The target of a model's route."""
    return f"/v2/models/{quote(model, safe='', errors='replace')}/{action}".encode()


def repository_target(model: str, action: str) -> bytes:
    """The target of the route that loads or unloads a model."""
    return f"/v2/repository/models/{quote(model, safe='', errors='replace')}/{action}".encode()


def template(target: bytes) -> str:
    """The route of a request target as its template: /v2/models/{model}/infer. Empty: none."""
    path = path_of(target)
    for pattern, _, text in _PATTERNS:
        if match := pattern.fullmatch(path):
            there = match.groupdict("")
            return _OPTIONAL.sub(lambda part: part[1] if there[part[2]] else "", text)  # noqa: B023
    return ""


def path_of(target: bytes) -> str:
    """The path of a target in origin form or in absolute form, without its query."""
    text = target.decode("latin-1")
    path = text.partition("?")[0].partition("#")[0]
    if not path.startswith("/") and (match := _ABSOLUTE.match(path)):
        return path[match.end() :] or "/"
    return path
