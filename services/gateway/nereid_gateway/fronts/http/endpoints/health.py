"""Health routes: whether this server is live, and whether it or a model is ready."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from nereid.core.errors import NereidError, NotFound, http_status
from nereid.pb import kserve_pb2
from nereid_gateway.server.call import TEXT

if TYPE_CHECKING:
    from nereid_gateway.core.routes import Route
    from nereid_gateway.plane.data_plane import DataPlane
    from nereid_gateway.server.call import HttpCall

EXITING: Final = "Server exiting"


class HealthEndpoints:
    """Handlers of the health routes."""

    def __init__(self, data_plane: DataPlane) -> None:
        self._data_plane = data_plane

    def live(self, call: HttpCall, _route: Route) -> None:
        """Respond with 200 if this server is live, otherwise with an error."""
        if self._data_plane.live:
            call.respond(200, (), TEXT)
        else:
            call.fail(503, EXITING, TEXT)

    async def ready(self, call: HttpCall, _route: Route) -> None:
        """Respond with 200 if this server is not draining and the mesh accepts requests."""
        if self._data_plane.draining:
            call.fail(503, EXITING, TEXT)
        else:
            call.respond(200 if await self._data_plane.ready() else 400, (), TEXT)

    async def model_ready(self, call: HttpCall, route: Route) -> None:
        """Respond with 200 if the model can execute requests."""
        try:
            response = await self._data_plane.control.call(
                "ModelReady",
                kserve_pb2.ModelReadyRequest(name=route.model, version=route.version),
                kserve_pb2.ModelReadyResponse,
            )
            ready = response.ready
        except NotFound:
            ready = False
        except NereidError as error:
            call.fail(http_status(error.code), error.message, TEXT)
            return
        if ready:
            call.respond(200, (), TEXT)
        else:
            call.fail(400, "Model version not ready", TEXT)
