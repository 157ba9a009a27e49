"""The HTTP routes beside infer: health, metadata, configuration, statistics.

Each handler asks the data plane and writes what it says as JSON.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from nereid.core.errors import NereidError, NotFound, http_status
from nereid.model_config import config_json
from nereid.pb import kserve_pb2
from nereid.services.gateway.http.endpoints import shared_memory
from nereid.services.gateway.http.endpoints.repository import HttpRepository
from nereid.services.gateway.http.endpoints.trace_and_log import HttpSettings
from nereid.services.gateway.http.json import control_documents
from nereid.services.gateway.http.routes import Kind, Route
from nereid.services.gateway.http.server.call import JSON, TEXT, HttpCall

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from nereid.services.gateway.data_plane import DataPlane

    Work = Coroutine[Any, Any, None]
    Handler = Callable[[HttpCall, Route], Work]
    Spawn = Callable[[HttpCall, Work], None]

EXITING: Final = "Server exiting"

_GET: Final = (b"GET",)
_POST: Final = (b"POST",)
_METHODS: Final = {
    Kind.GENERATE: _POST,
    Kind.GENERATE_STREAM: _POST,
    Kind.REPOSITORY_INDEX: _POST,
    Kind.REPOSITORY_LOAD: _POST,
    Kind.REPOSITORY_UNLOAD: _POST,
    Kind.LOGGING: _GET + _POST,
    Kind.TRACE_SETTING: _GET + _POST,
    Kind.SHARED_MEMORY_REGISTER: _POST,
    Kind.SHARED_MEMORY_UNREGISTER: _POST,
}
# Triton answers a wrong method on these as text.
_TEXT_KINDS: Final = frozenset({Kind.LIVE, Kind.READY, Kind.MODEL_READY})


class HttpControl:
    """Handlers of the control routes."""

    def __init__(self, data_plane: DataPlane) -> None:
        self._data_plane = data_plane
        self._control = data_plane.control
        self._handlers: dict[Kind, Handler] = {
            Kind.READY: self._ready,
            Kind.MODEL_METADATA: self._model_metadata,
            Kind.MODEL_READY: self._model_ready,
            Kind.MODEL_CONFIG: self._model_config,
            Kind.MODEL_STATISTICS: self._model_statistics,
            **HttpRepository(data_plane.control).handlers(),
            **HttpSettings(data_plane.control).handlers(),
        }

    def dispatch(self, call: HttpCall, route: Route, spawn: Spawn) -> None:
        """Answer at once where nobody needs to be asked, else in a task."""
        kind = route.kind
        if kind is Kind.NOT_FOUND:
            call.fail(404, "Not Found", TEXT)
        elif call.method not in (allowed := _METHODS.get(kind, _GET)):
            call.refuse_method(TEXT if kind in _TEXT_KINDS else JSON, *allowed)
        elif kind in self._handlers:
            spawn(call, self._handlers[kind](call, route))
        else:
            self._response_here(call, route)

    def _response_here(self, call: HttpCall, route: Route) -> None:
        if route.kind is Kind.LIVE:
            if self._data_plane.live:
                call.respond(200, (), TEXT)
            else:
                call.fail(503, EXITING, TEXT)
        elif route.kind is Kind.SERVER_METADATA:
            call.respond(
                200, (control_documents.server_metadata(self._data_plane.server_metadata()),)
            )
        else:
            shared_memory.response(call, route, self._data_plane.regions)

    async def _ready(self, call: HttpCall, _route: Route) -> None:
        if self._data_plane.draining:
            call.fail(503, EXITING, TEXT)
        else:
            call.respond(200 if await self._data_plane.ready() else 400, (), TEXT)

    async def _model_ready(self, call: HttpCall, route: Route) -> None:
        try:
            response = await self._control.call(
                "ModelReady",
                kserve_pb2.ModelReadyRequest(name=route.name, version=route.version),
                kserve_pb2.ModelReadyResponse,
            )
            ready, error = response.ready, None
        except NereidError as failure:
            ready, error = False, failure
        if ready:
            call.respond(200, (), TEXT)
        elif error is None or isinstance(error, NotFound):
            call.fail(400, "Model version not ready", TEXT)
        else:
            call.fail(http_status(error.code), error.message, TEXT)

    async def _model_metadata(self, call: HttpCall, route: Route) -> None:
        response = await self._control.call(
            "ModelMetadata",
            kserve_pb2.ModelMetadataRequest(name=route.name, version=route.version),
            kserve_pb2.ModelMetadataResponse,
        )
        call.respond(200, (control_documents.model_metadata(response),))

    async def _model_config(self, call: HttpCall, route: Route) -> None:
        response = await self._control.call(
            "ModelConfig",
            kserve_pb2.ModelConfigRequest(name=route.name, version=route.version),
            kserve_pb2.ModelConfigResponse,
        )
        call.respond(200, (config_json(response.config),))

    async def _model_statistics(self, call: HttpCall, route: Route) -> None:
        response = await self._control.call(
            "ModelStatistics",
            kserve_pb2.ModelStatisticsRequest(name=route.name, version=route.version),
            kserve_pb2.ModelStatisticsResponse,
        )
        call.respond(200, (control_documents.model_statistics(response),))
