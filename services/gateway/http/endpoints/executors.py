"""What is asked of executors over HTTP: that one is drained."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nereid.core.errors import PermissionDenied
from nereid.pb import nereid_pb2 as pb
from nereid.services.gateway.auth.principal import principal_of
from nereid.services.gateway.policy.api_groups import API_BY_ROUTE

if TYPE_CHECKING:
    from nereid.services.gateway.control import Control
    from nereid.services.gateway.http.routes import Route
    from nereid.services.gateway.http.server.call import HttpCall


class ExecutorEndpoints:
    """Handlers of the executors' routes."""

    def __init__(self, control: Control) -> None:
        self._control = control

    async def drain(self, call: HttpCall, route: Route) -> None:
        principal = principal_of(call.sender)
        api = API_BY_ROUTE[route.kind]
        if principal is not None and principal.grant.depends_on_model(api):
            # It executes all of them.
            raise PermissionDenied(f"'{principal.name}' needs the API '{api}' for all models")
        request = pb.DrainExecutorRequest(name=route.executor)
        await self._control.call("DrainExecutor", request, pb.DrainExecutorResponse)
        call.respond(200, ())
