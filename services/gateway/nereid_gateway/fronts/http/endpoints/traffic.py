"""Routes for how a model's requests are divided among its versions, and for rollouts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson

from nereid.core.errors import InvalidArgument
from nereid.core.traffic.messages import traffic_of, write_traffic
from nereid.core.traffic.weights import parse_traffic
from nereid.pb import nereid_pb2 as pb
from nereid_gateway.core.access.principal import principal_of
from nereid_gateway.fronts.http.endpoints.control_bodies import read_body

if TYPE_CHECKING:
    from nereid_gateway.core.routes import Route
    from nereid_gateway.plane.control.control import Control
    from nereid_gateway.plane.data_plane import DataPlane
    from nereid_gateway.server.call import HttpCall


class TrafficEndpoints:
    """Handlers of the routes for a model's traffic and rollouts."""

    def __init__(self, control: Control, data_plane: DataPlane) -> None:
        self._control = control
        self._data_plane = data_plane

    async def traffic(self, call: HttpCall, route: Route) -> None:
        """Respond with a model's traffic. On POST, set it first; on DELETE, forget what was set."""
        request = pb.ModelTrafficRequest(model=route.model, clear=call.method == b"DELETE")
        if call.method == b"POST":
            request.traffic.ParseFromString(await read_body(self._data_plane, call, _read_traffic))
        principal = principal_of(call.sender)
        if principal is not None:
            request.principal = principal.name
        response = await self._control.call("ModelTraffic", request, pb.ModelTrafficResponse)
        call.respond(200, (_document(route.model, response),))

    async def rollout(self, call: HttpCall, route: Route) -> None:
        """Respond with a model's rollout. On POST, begin one, or pause, resume or abort it."""
        request = pb.ModelRolloutRequest(model=route.model)
        if call.method == b"POST":
            request.action, request.plan = await read_body(self._data_plane, call, _read_rollout)
        principal = principal_of(call.sender)
        if principal is not None:
            request.principal = principal.name
        response = await self._control.call("ModelRollout", request, pb.ModelRolloutResponse)
        call.respond(200, (response.document.encode(),))


def _read_rollout(body: bytes) -> tuple[str, str]:
    """Return the action of a body, and its plan."""
    try:
        text = body.decode()
        document = orjson.loads(text)
    except ValueError as error:
        raise InvalidArgument(f"the rollout is no JSON: {error}") from None
    action = document.get("action") if isinstance(document, dict) else None
    if isinstance(action, str) and action and document.keys() == {"action"}:
        return action, ""
    return "begin", text


def _read_traffic(body: bytes) -> bytes:
    message = pb.Traffic()
    try:
        write_traffic(parse_traffic(body.decode()), message)
    except ValueError as error:
        raise InvalidArgument(f"the traffic is not valid: {error}") from None
    return message.SerializeToString()


def _document(model: str, response: pb.ModelTrafficResponse) -> bytes:
    traffic = traffic_of(response.traffic).document() if response.source else None
    document: dict[str, Any] = {
        "model": model,
        "traffic": traffic,
        "source": response.source or None,
    }
    if response.warnings:
        document["warnings"] = list(response.warnings)
    return orjson.dumps(document)
