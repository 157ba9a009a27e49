"""Which route a request's target names. Pure: text in, route out.

Versions are digits only, names anything without a slash, and nothing is percent-decoded, as on
Triton.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import Final, NamedTuple


class Kind(Enum):
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
    SHARED_MEMORY_STATUS = "shared memory status"
    SHARED_MEMORY_REGISTER = "shared memory register"
    SHARED_MEMORY_UNREGISTER = "shared memory unregister"


class Route(NamedTuple):
    """A route with what its target says.

    That is a model and version, a model and repository, or a kind of memory and a region.
    """

    kind: Kind
    name: str = ""
    version: str = ""


NOT_FOUND: Final = Route(Kind.NOT_FOUND)

_FIXED: Final = {
    "/v2": Route(Kind.SERVER_METADATA),
    "/v2/health/live": Route(Kind.LIVE),
    "/v2/health/ready": Route(Kind.READY),
    "/v2/models/stats": Route(Kind.MODEL_STATISTICS),
    "/v2/logging": Route(Kind.LOGGING),
    "/v2/trace/setting": Route(Kind.TRACE_SETTING),
    "/v2/repository/index": Route(Kind.REPOSITORY_INDEX),
}
_MODEL: Final = re.compile(r"/v2/models/([^/]+)(?:/versions/([0-9]+))?(?:/([a-z_]+))?\Z")
_MODEL_ACTIONS: Final = {
    None: Kind.MODEL_METADATA,
    "ready": Kind.MODEL_READY,
    "config": Kind.MODEL_CONFIG,
    "stats": Kind.MODEL_STATISTICS,
    "infer": Kind.INFER,
    "generate": Kind.GENERATE,
    "generate_stream": Kind.GENERATE_STREAM,
}
_ABSOLUTE: Final = re.compile(r"https?://[^/]*", re.IGNORECASE)
_MODEL_TRACE: Final = re.compile(r"/v2/models/([^/]+)/trace/setting\Z")
_INDEX: Final = re.compile(r"/v2/repository/[^/]+/index\Z")
_REPOSITORY: Final = re.compile(r"/v2/repository(?:/([^/]+))?/models/([^/]+)/(load|unload)\Z")
_REPOSITORY_ACTIONS: Final = {"load": Kind.REPOSITORY_LOAD, "unload": Kind.REPOSITORY_UNLOAD}
_SHARED_MEMORY: Final = re.compile(
    r"/v2/(system|cuda)sharedmemory(?:/region/([^/]+))?/(status|register|unregister)\Z"
)
_SHARED_MEMORY_ACTIONS: Final = {
    "status": Kind.SHARED_MEMORY_STATUS,
    "register": Kind.SHARED_MEMORY_REGISTER,
    "unregister": Kind.SHARED_MEMORY_UNREGISTER,
}


def resolve(target: bytes) -> Route:
    """The route of a request target; a query is ignored."""
    path = _path(target.decode("latin-1"))
    fixed = _FIXED.get(path)
    if fixed is not None:
        return fixed
    if match := _MODEL.match(path):
        kind = _MODEL_ACTIONS.get(match[3], Kind.NOT_FOUND)
        return Route(kind, _name(match[1]), match[2] or "")
    if match := _SHARED_MEMORY.match(path):
        return Route(_SHARED_MEMORY_ACTIONS[match[3]], match[1], _name(match[2] or ""))
    if match := _MODEL_TRACE.match(path):
        return Route(Kind.TRACE_SETTING, _name(match[1]))
    if match := _REPOSITORY.match(path):
        return Route(_REPOSITORY_ACTIONS[match[3]], _name(match[2]), _name(match[1] or ""))
    if _INDEX.match(path):
        return Route(Kind.REPOSITORY_INDEX)
    return NOT_FOUND


def _path(target: str) -> str:
    """Origin form, or the path of a target in absolute form."""
    path = target.partition("?")[0].partition("#")[0]
    if not path.startswith("/") and (match := _ABSOLUTE.match(path)):
        return path[match.end() :] or "/"
    return path


def _name(text: str) -> str:
    """A name that came as raw UTF-8, as text."""
    return text.encode("latin-1").decode("utf-8", "replace")
