"""RPC that shows and sets how a model's requests are divided among its versions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nereid.core.errors import InvalidArgument
from nereid.core.methods import SCHEDULER
from nereid.core.traffic.messages import traffic_of, write_traffic
from nereid.pb import nereid_pb2 as pb
from nereid_scheduler.pages.control import control_handler

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from nereid_scheduler.control.shards.remote_control import Respond
    from nereid_scheduler.control.sources.model_traffic import ModelTraffic


def traffic_handlers(traffic: ModelTraffic) -> dict[str, Respond]:
    """Return the handler of ModelTraffic by its path."""

    async def respond(request: pb.ModelTrafficRequest) -> Message:
        if request.clear:
            await traffic.set(request.model, None, request.principal)
        elif request.HasField("traffic"):
            try:
                wanted = traffic_of(request.traffic)
            except ValueError as error:
                raise InvalidArgument(f"traffic of model '{request.model}': {error}") from None
            await traffic.set(request.model, wanted, request.principal)
        found = traffic.find(request.model)
        response = pb.ModelTrafficResponse()
        if found is not None:
            write_traffic(found.traffic, response.traffic)
            response.source = found.source
        return response

    return {SCHEDULER + "ModelTraffic": control_handler(pb.ModelTrafficRequest, respond)}
