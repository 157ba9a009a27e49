"""Route that drains an executor."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nereid.pb import nereid_pb2 as pb
from nereid_gateway.core.access.principal import principal_of
from nereid_gateway.fronts.http.endpoints.all_models import check_all_models
from nereid_gateway.server.query import Query

if TYPE_CHECKING:
    from collections.abc import Collection

    from nereid_gateway.core.routes import Route
    from nereid_gateway.plane.control.control import Control
    from nereid_gateway.server.call import HttpCall


class ExecutorEndpoints:
    """Handlers of the routes for executors."""

    def __init__(self, control: Control, restricted_apis: Collection[str]) -> None:
        """restricted_apis: APIs that need a header. A call that gets here has sent the header."""
        self._control = control
        self._restricted_apis = restricted_apis

    async def drain(self, call: HttpCall, route: Route) -> None:
        """Drain an executor."""
        # An executor executes the models of all clients.
        check_all_models(call, route)
        principal = principal_of(call.sender)
        request = pb.DrainExecutorRequest(
            name=route.executor,
            allow_last=Query(call.target, ("allow_last",)).flag("allow_last"),
            authorized=route.endpoint.api in self._restricted_apis
            or (principal is not None and not principal.is_anonymous),
        )
        await self._control.call("DrainExecutor", request, pb.DrainExecutorResponse)
        call.respond(200, ())
