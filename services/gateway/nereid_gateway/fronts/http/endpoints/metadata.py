"""Routes that describe the server and its models: metadata, configuration, statistics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from nereid.model_config import config_json
from nereid.pb import kserve_pb2
from nereid_gateway.fronts.http.json import control_documents

if TYPE_CHECKING:
    from nereid_gateway.core.routes import Route
    from nereid_gateway.plane.data_plane import DataPlane
    from nereid_gateway.server.call import HttpCall

_WITH_SOURCES: Final = b"sources=true"


class MetadataEndpoints:
    """Handlers of the routes that describe the server and its models."""

    def __init__(self, data_plane: DataPlane) -> None:
        self._data_plane = data_plane
        self._control = data_plane.control

    def server_metadata(self, call: HttpCall, _route: Route) -> None:
        """Respond with the server's name, version and extensions."""
        metadata = self._data_plane.server_metadata()
        call.respond(200, (control_documents.server_metadata(metadata),))

    async def model_metadata(self, call: HttpCall, route: Route) -> None:
        """Respond with a model's versions, platform and tensors."""
        response = await self._control.call(
            "ModelMetadata",
            kserve_pb2.ModelMetadataRequest(name=route.model, version=route.version),
            kserve_pb2.ModelMetadataResponse,
        )
        call.respond(200, (control_documents.model_metadata(response),))

    async def model_config(self, call: HttpCall, route: Route) -> None:
        """Respond with the configuration of a model, as the scheduler has completed it.

        With the query `sources=true`, the document also says where fields come from.
        """
        response = await self._control.call(
            "ModelConfig",
            kserve_pb2.ModelConfigRequest(name=route.model, version=route.version),
            kserve_pb2.ModelConfigResponse,
        )
        wanted = call.target.partition(b"?")[2] == _WITH_SOURCES
        call.respond(200, (config_json(response.config, response.sources if wanted else None),))

    async def model_statistics(self, call: HttpCall, route: Route) -> None:
        """Respond with the statistics of a model, or of all models."""
        request = kserve_pb2.ModelStatisticsRequest(name=route.model, version=route.version)
        if route.model:
            page = _statistics(
                await self._control.call_bytes("ModelStatistics", request.SerializeToString())
            )
        else:
            page = await self._control.read_for_whole_mesh("ModelStatistics", request, _statistics)
        call.respond(200, (page,))


def _statistics(response: bytes) -> bytes:
    return control_documents.model_statistics(
        kserve_pb2.ModelStatisticsResponse.FromString(response)
    )
