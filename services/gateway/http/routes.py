"""Which route the target of a request names. Pure: text in, route out.

As on Triton, versions are digits, names anything without a slash, and nothing is percent-decoded.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import Final, NamedTuple

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


# Tried in this order. `{name}` is a member of Route; what is in brackets may be missing.
_ROUTES: Final = {
    "/v2/models/{model}[/versions/{version}]/infer": RouteKind.INFER,
    "/v2/models/{model}[/versions/{version}]/generate": RouteKind.GENERATE,
    "/v2/models/{model}[/versions/{version}]/generate_stream": RouteKind.GENERATE_STREAM,
    "/v2": RouteKind.SERVER_METADATA,
    "/v2/health/live": RouteKind.LIVE,
    "/v2/health/ready": RouteKind.READY,
    "/v2/models/stats": RouteKind.MODEL_STATISTICS,
    "/v2/models/{model}[/versions/{version}]": RouteKind.MODEL_METADATA,
    "/v2/models/{model}[/versions/{version}]/ready": RouteKind.MODEL_READY,
    "/v2/models/{model}[/versions/{version}]/config": RouteKind.MODEL_CONFIG,
    "/v2/models/{model}[/versions/{version}]/stats": RouteKind.MODEL_STATISTICS,
    "/v2/models/{model}/trace/setting": RouteKind.TRACE_SETTING,
    "/v2/trace/setting": RouteKind.TRACE_SETTING,
    "/v2/logging": RouteKind.LOGGING,
    TIMELINE_PATH: RouteKind.TIMELINE,
    "/v2/nereid/executors/{executor}/drain": RouteKind.EXECUTOR_DRAIN,
    "/v2/repository[/{repository}]/index": RouteKind.REPOSITORY_INDEX,
    "/v2/repository[/{repository}]/models/{model}/load": RouteKind.REPOSITORY_LOAD,
    "/v2/repository[/{repository}]/models/{model}/unload": RouteKind.REPOSITORY_UNLOAD,
    "/v2/{memory_kind}sharedmemory[/region/{region}]/status": RouteKind.SHARED_MEMORY_STATUS,
    "/v2/{memory_kind}sharedmemory[/region/{region}]/register": RouteKind.SHARED_MEMORY_REGISTER,
    "/v2/{memory_kind}sharedmemory[/region/{region}]/unregister": RouteKind.SHARED_MEMORY_UNREGISTER,  # noqa: E501
    "/console[/static/{file}]": RouteKind.CONSOLE_PAGE,
    "/console/facts": RouteKind.CONSOLE_FACTS,
    "/console/stream": RouteKind.CONSOLE_STREAM,
}
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
_PATTERNS: Final = [(_compiled(template), kind) for template, kind in _ROUTES.items()]


def resolve(target: bytes) -> Route:
    """The route of a request target; a query is ignored."""
    path = path_of(target)
    for pattern, kind in _PATTERNS:
        if match := pattern.fullmatch(path):
            # Names come as raw UTF-8.
            names = {
                member: text.encode("latin-1").decode("utf-8", "replace")
                for member, text in match.groupdict("").items()
            }
            return Route(kind, **names)
    return Route(RouteKind.NOT_FOUND)


def template(target: bytes) -> str:
    """The route of a request target as its template: /v2/models/{model}/infer. Empty: none."""
    path = path_of(target)
    for (pattern, _), text in zip(_PATTERNS, _ROUTES, strict=True):
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
