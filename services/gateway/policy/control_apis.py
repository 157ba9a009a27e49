"""The APIs that change the server, which --open-control-apis=false closes to clients without
credentials: they are served only where something else restricts them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from nereid.rpc import RpcError, Status
from nereid.services.gateway.http.routes import RouteKind, resolve
from nereid.services.gateway.http.server.call import TEXT, HttpCall

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, MutableMapping

    from nereid.rpc import AsyncUnaryHandler, Call, Handlers

_SERVICE: Final = "/inference.GRPCInferenceService/"
# Of each API, named as for --http-restricted-api, the parts that change something. What is there
# (index, status) everybody may read.
_ROUTES: Final = {
    "model-repository": (RouteKind.REPOSITORY_LOAD, RouteKind.REPOSITORY_UNLOAD),
    "shared-memory": (RouteKind.SHARED_MEMORY_REGISTER, RouteKind.SHARED_MEMORY_UNREGISTER),
    "trace": (RouteKind.TRACE_SETTING,),
    "logging": (RouteKind.LOGGING,),
}
_METHODS: Final = {
    "model-repository": ("RepositoryModelLoad", "RepositoryModelUnload"),
    "shared-memory": tuple(
        f"{kind}SharedMemory{act}"
        for kind in ("System", "Cuda")
        for act in ("Register", "Unregister")
    ),
    "trace": ("TraceSetting",),
    "logging": ("LogSettings",),
}
CONTROL_APIS: Final = frozenset(_ROUTES)
_CLOSED: Final = "This API is closed on this server: restrict it, or set --open-control-apis"


class ClosedHttp:
    """Dispatches calls to the HTTP front, but for those of closed APIs."""

    def __init__(self, dispatch: Callable[[HttpCall], None], closed: Collection[str]) -> None:
        self._dispatch = dispatch
        self._kinds = frozenset(kind for name in closed for kind in _ROUTES[name])

    def __call__(self, call: HttpCall) -> None:
        if resolve(call.target).kind in self._kinds:
            call.fail(403, _CLOSED, TEXT)
        else:
            self._dispatch(call)


def closed_grpc(
    handlers: Handlers, closed: Collection[str], statuses: MutableMapping[int, int]
) -> Handlers:
    """handlers, of which those of closed APIs refuse every call; refusals are counted."""

    async def refuse(_call: Call, _message: bytes) -> bytes:
        statuses[Status.PERMISSION_DENIED] += 1
        raise RpcError(Status.PERMISSION_DENIED, _CLOSED)

    refused: dict[str, AsyncUnaryHandler] = {
        _SERVICE + method: refuse for name in closed for method in _METHODS[name]
    }
    return replace(handlers, async_unary={**handlers.async_unary, **refused})
