"""Route for what gets copies of a model's requests, with this gateway's report."""

from __future__ import annotations

from typing import TYPE_CHECKING

import orjson

from nereid.comparison.shadow import parse_shadow
from nereid.core.errors import InvalidArgument, Unavailable
from nereid.pb import nereid_pb2 as pb
from nereid_gateway.core.access.principal import principal_of
from nereid_gateway.fronts.http.endpoints.control_bodies import read_body

if TYPE_CHECKING:
    from nereid_gateway.core.routes import Route
    from nereid_gateway.extras.shadows.shadows import Shadows
    from nereid_gateway.plane.data_plane import DataPlane
    from nereid_gateway.server.call import HttpCall


class ShadowEndpoints:
    """Handlers of the route for a model's shadow."""

    def __init__(self, data_plane: DataPlane, shadows: Shadows) -> None:
        self._control = data_plane.control
        self._data_plane = data_plane
        self._shadows = shadows

    async def shadow(self, call: HttpCall, route: Route) -> None:
        """Respond with a model's shadow and report. On POST, set it first; on DELETE, clear it."""
        request = pb.ModelTrafficRequest(model=route.model, clear_shadow=call.method == b"DELETE")
        if call.method == b"POST":
            request.shadow = (await read_body(self._data_plane, call, _read_shadow)).decode()
        principal = principal_of(call.sender)
        if principal is not None:
            request.principal = principal.name
        response = await self._control.call("ModelTraffic", request, pb.ModelTrafficResponse)
        report = None
        if call.method == b"GET" and response.shadow:
            try:
                report = await self._shadows.report(route.model)
            except Unavailable:
                # The process that compares is about to start.
                report = None
        shadow = orjson.loads(response.shadow) if response.shadow else None
        document = {
            "model": route.model,
            "shadow": shadow,
            "source": response.shadow_source or None,
            "problem": response.shadow_problem or None,
            "compared": response.compared,
            "differing": response.differing,
            "report": report,
        }
        call.respond(200, (orjson.dumps(document),))


def _read_shadow(body: bytes) -> bytes:
    try:
        return parse_shadow(body.decode()).text().encode()
    except ValueError as error:
        raise InvalidArgument(f"the shadow is not valid: {error}") from None
