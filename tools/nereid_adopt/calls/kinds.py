"""Kinds of calls of KServe v2 and Triton's extensions, by path and method."""

# layout: compiled

from __future__ import annotations

import re
from enum import Enum, auto
from typing import Final, NamedTuple
from urllib.parse import unquote_to_bytes

GRPC_SERVICE: Final = "/inference.GRPCInferenceService/"
MODEL_INFER: Final = f"{GRPC_SERVICE}ModelInfer"
_INFER: Final = re.compile(
    rb"/v2/models/(?P<model>[^/?]+)(?:/versions/[^/?]+)?/(?P<verb>infer|generate|generate_stream)"
    rb"(?:\?.*)?\Z"
)
_CHANGE: Final = re.compile(
    rb"/v2/(?:repository/.*/(?:load|unload)|(?:models/[^/]+/)?trace/setting|logging"
    rb"|(?:system|cuda)sharedmemory/(?:region/.*/)?(?:register|unregister))(?:\?.*)?\Z"
)
_GRPC_CHANGES: Final = frozenset(
    f"{GRPC_SERVICE}{name}"
    for name in (
        "RepositoryModelLoad",
        "RepositoryModelUnload",
        "SystemSharedMemoryRegister",
        "SystemSharedMemoryUnregister",
        "CudaSharedMemoryRegister",
        "CudaSharedMemoryUnregister",
        "TraceSetting",
        "LogSettings",
    )
)


class CallKind(Enum):
    """Kind of a call, which says who gets it."""

    # One request, whose copy goes to the other server.
    INFER = auto()
    # Requests and responses in any order; each request has its copy.
    STREAM = auto()
    # An inference whose responses are events. It has no copy.
    EVENTS = auto()
    # A change of the server, which both servers get.
    CHANGE = auto()
    OTHER = auto()


class HttpCall(NamedTuple):
    """Kind of an HTTP request, and the model of an inference; "" for other calls."""

    kind: CallKind
    model: str = ""


def http_call(method: str, target: bytes) -> HttpCall:
    """Return the kind of an HTTP request."""
    if method != "POST":
        return HttpCall(CallKind.OTHER)
    found = _INFER.match(target)
    if found is not None:
        model = unquote_to_bytes(found["model"]).decode("utf-8", "replace")
        events = found["verb"] == b"generate_stream"
        return HttpCall(CallKind.EVENTS if events else CallKind.INFER, model)
    return HttpCall(CallKind.CHANGE if _CHANGE.match(target) else CallKind.OTHER)


def grpc_call(path: str) -> CallKind:
    """Return the kind of a gRPC call."""
    if path == MODEL_INFER:
        return CallKind.INFER
    if path == f"{GRPC_SERVICE}ModelStreamInfer":
        return CallKind.STREAM
    return CallKind.CHANGE if path in _GRPC_CHANGES else CallKind.OTHER
