"""What is asked of executors over HTTP: that one is drained."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nereid.pb import nereid_pb2 as pb
from nereid.services.gateway.http.endpoints.all_models import check_all_models

if TYPE_CHECKING:
    from nereid.services.gateway.control import Control
    from nereid.services.gateway.http.routes import Route
    from nereid.services.gateway.http.server.call import HttpCall


class ExecutorEndpoints:
    """Handlers of the executors' routes."""

    def __init__(self, control: Control) -> None:
        self._control = control

    async def drain(self, call: HttpCall, route: Route) -> None:
        # It executes those of everybody.
        check_all_models(call, route)
        request = pb.DrainExecutorRequest(name=route.executor)
        await self._control.call("DrainExecutor", request, pb.DrainExecutorResponse)
        call.respond(200, ())
