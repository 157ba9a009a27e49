"""RPCs that show and set how a model's requests are divided, and what gets copies of them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from nereid.comparison.shadow import parse_shadow
from nereid.core.errors import InvalidArgument
from nereid.core.methods import SCHEDULER
from nereid.core.traffic.messages import traffic_of, write_traffic
from nereid.core.traffic.weights import unique_members
from nereid.pb import nereid_pb2 as pb
from nereid_scheduler.core.models.shadow_counts import Compared
from nereid_scheduler.pages.control import control_handler

if TYPE_CHECKING:
    from collections.abc import Callable

    from google.protobuf.message import Message

    from nereid.comparison.shadow import Shadow
    from nereid_scheduler.control.rollouts.rollouts import Rollouts
    from nereid_scheduler.control.shards.remote_control import Respond
    from nereid_scheduler.control.sources.model_traffic import ModelTraffic


_BEGIN: Final = "begin"


def traffic_handlers(
    traffic: ModelTraffic, find_problem: Callable[[str, Shadow], str]
) -> dict[str, Respond]:
    """Return the handler of ModelTraffic by its path.

    find_problem: returns why a model's shadow cannot be compared now, or an empty text.
    """

    async def respond(request: pb.ModelTrafficRequest) -> Message:
        await _change(traffic, request)
        found, shadow = traffic.find(request.model), traffic.find_shadow(request.model)
        response = pb.ModelTrafficResponse()
        if found is not None:
            write_traffic(found.traffic, response.traffic)
            response.source = found.source
            response.warnings.extend(traffic.mismatches(request.model))
        if shadow is not None:
            response.shadow, response.shadow_source = shadow.shadow.text(), shadow.source
            response.shadow_problem = find_problem(request.model, shadow.shadow)
            response.compared, response.differing = traffic.compared(request.model)
        return response

    return {SCHEDULER + "ModelTraffic": control_handler(pb.ModelTrafficRequest, respond)}


async def _change(traffic: ModelTraffic, request: pb.ModelTrafficRequest) -> None:
    """Change what a request says."""
    model, principal = request.model, request.principal
    try:
        if request.HasField("traffic"):
            await traffic.set(model, traffic_of(request.traffic), principal)
        elif request.shadow:
            await traffic.set_shadow(model, parse_shadow(request.shadow), principal)
    except ValueError as error:
        raise InvalidArgument(f"traffic of model '{model}': {error}") from None
    if request.clear:
        await traffic.set(model, None, principal)
    elif request.clear_shadow:
        await traffic.set_shadow(model, None, principal)
    elif request.HasField("counts"):
        counts = request.counts
        compared = Compared(counts.compared, counts.differing)
        traffic.report_counts(model, counts.shadow, counts.gateway, compared)


def rollout_handlers(rollouts: Rollouts) -> dict[str, Respond]:
    """Return the handler of ModelRollout by its path."""

    async def respond(request: pb.ModelRolloutRequest) -> Message:
        if request.action == _BEGIN:
            await rollouts.begin(request.model, _parse_plan(request.plan), request.principal)
        elif request.action:
            await rollouts.act(request.model, request.action, request.principal)
        document = rollouts.describe(request.model)
        return pb.ModelRolloutResponse(document=json.dumps(document))

    return {SCHEDULER + "ModelRollout": control_handler(pb.ModelRolloutRequest, respond)}


def _parse_plan(text: str) -> dict[str, Any]:
    try:
        plan = json.loads(text, object_pairs_hook=unique_members)
    except (ValueError, RecursionError):
        plan = None
    if not isinstance(plan, dict):
        raise InvalidArgument("expected a rollout as a JSON object")
    return plan
