"""Routes of Vertex AI: health, and predictions by the default model or by a route in a header."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from nereid_gateway.core.routes import model_target
from nereid_gateway.extras.managed.port import refuse_route
from nereid_gateway.extras.managed.server import content_types
from nereid_gateway.extras.managed.vertex_routes import REDIRECT_HEADER, redirect
from nereid_gateway.server.call import JSON

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from nereid_gateway.extras.managed.default_model import DefaultModel
    from nereid_gateway.extras.managed.server.calls import ManagedCall
    from nereid_gateway.server.ordered_responses import Dispatch


class VertexAi:
    """Translates the calls of the Vertex AI port."""

    def __init__(
        self,
        default_model: DefaultModel,
        metrics: Dispatch | None,
        *,
        predict_route: str,
        health_route: str,
    ) -> None:
        self._default = default_model
        self._metrics = metrics
        self._predict_route, self._health_route = predict_route.encode(), health_route.encode()

    def translate_head(self, call: ManagedCall) -> bool:
        """Translate an inference request by its head, as `Platform` specifies."""
        # As on Triton, responses have the form of the HTTP port.
        call.binary_type = content_types.VERTEX_AI
        model = self._default.name
        if not model or _path(call) != self._predict_route or REDIRECT_HEADER in call.headers:
            return False
        _predict(call, model)
        return True

    def translate(self, call: ManagedCall) -> Coroutine[Any, Any, None] | None:
        """Translate any other call, or respond to it, as `Platform` specifies."""
        path = _path(call)
        if path == self._health_route:
            call.translate(b"/v2/health/ready")
        elif path != self._predict_route:
            refuse_route(call)
        elif REDIRECT_HEADER not in call.headers:
            return self._predict_default(call)
        elif call.method != b"POST":
            call.refuse_method(JSON, b"POST")
        else:
            self._redirect(call, call.headers[REDIRECT_HEADER])
        return None

    async def _predict_default(self, call: ManagedCall) -> None:
        _predict(call, await self._default.find())

    def _redirect(self, call: ManagedCall, value: bytes) -> None:
        to = redirect(value)
        if to is None or (to.metrics and self._metrics is None):
            refuse_route(call)
            return
        call.method = to.method
        serve_metrics = None if self._metrics is None else partial(_metrics_page, self._metrics)
        call.translate(to.target, serve_metrics if to.metrics else None)


def _path(call: ManagedCall) -> bytes:
    return call.target.partition(b"?")[0]


def _predict(call: ManagedCall, model: str) -> None:
    call.translate(model_target(model, "infer"))


def _metrics_page(metrics: Dispatch, call: ManagedCall) -> None:
    call.target = b"/metrics"
    metrics(call)
