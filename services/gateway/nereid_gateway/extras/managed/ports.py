"""Managed ports that the settings ask for. Each is an HTTP server that does not listen yet."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from nereid.process.service_process import StartError
from nereid_gateway.core.routes import SAGEMAKER, VERTEX_AI
from nereid_gateway.extras.managed.archives import Archives
from nereid_gateway.extras.managed.default_model import DefaultModel
from nereid_gateway.extras.managed.multi_model import MultiModel
from nereid_gateway.extras.managed.port import ManagedPort
from nereid_gateway.extras.managed.sagemaker import SageMaker
from nereid_gateway.extras.managed.server.calls import ManagedReader
from nereid_gateway.extras.managed.vertex_ai import VertexAi
from nereid_gateway.server.server import HttpServer

if TYPE_CHECKING:
    from nereid.rpc.net.limits.budget import ByteBudget
    from nereid_gateway.extras.managed.port import Guard, Platform
    from nereid_gateway.fronts.http.front import HttpFront
    from nereid_gateway.plane.control.control import Control
    from nereid_gateway.server.limits import HttpLimits
    from nereid_gateway.server.ordered_responses import Dispatch
    from nereid_gateway.settings import GatewaySettings


def make_ports(  # noqa: PLR0913, PLR0917 (what the HTTP port consists of)
    settings: GatewaySettings,
    control: Control,
    front: HttpFront,
    metrics: Dispatch,
    guard: Guard,
    limits: HttpLimits,
    budget: ByteBudget,
) -> dict[str, HttpServer]:
    """Return the managed ports that the settings ask for, by name.

    front: serves the HTTP port. metrics: serves the metrics port. Raises StartError if multi-model
    mode has no repository.
    """
    platforms: dict[str, Platform] = {}
    if settings.allow_sagemaker:
        platforms[SAGEMAKER] = _sagemaker(settings, control)
    if settings.allow_vertex_ai:
        default = settings.vertex_ai_default_model
        platforms[VERTEX_AI] = VertexAi(
            DefaultModel(control, default, "--vertex-ai-default-model"),
            metrics if settings.allow_metrics else None,
            predict_route=settings.vertex_ai_predict_route,
            health_route=settings.vertex_ai_health_route,
        )
    make_port = partial(ManagedPort, front=front, guard=guard, spawn_control=front.spawn_control)
    ports = {name: make_port(name, platform) for name, platform in platforms.items()}
    return {
        name: HttpServer(port, limits, ManagedReader, port.allocate_body, budget)
        for name, port in ports.items()
    }


def _sagemaker(settings: GatewaySettings, control: Control) -> SageMaker:
    default = settings.sagemaker_default_model
    multi_model = None
    if settings.sagemaker_multi_model:
        if not settings.sagemaker_repository:
            raise StartError("--sagemaker-multi-model: requires --sagemaker-repository as well")
        repository = Path(settings.sagemaker_repository).absolute()
        if not repository.is_dir():
            raise StartError(f"--sagemaker-repository: '{repository}': there is no such directory")
        archives = Archives(repository, Path(settings.sagemaker_models_directory))
        multi_model = MultiModel(control, archives)
    return SageMaker(
        DefaultModel(control, default, "--sagemaker-default-model"),
        multi_model,
        inference_type=settings.sagemaker_inference_type,
        ping_mode=settings.sagemaker_ping_mode,
    )
