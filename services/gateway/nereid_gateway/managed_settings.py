"""Flags of the SageMaker and Vertex AI ports, and the variables that those platforms set."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final

from nereid.config import flags
from nereid.config.flags import PlatformVariable, Topic, flag

if TYPE_CHECKING:
    from collections.abc import Mapping

_RANGE: Final = re.compile(r"([0-9]{1,5})-([0-9]{1,5})")
_PATH: Final = re.compile(r"/[!-~]*")
_MAX_PORT: Final = 65535
IN_VERTEX_AI: Final = PlatformVariable("AIP_MODE", {"PREDICTION": "true"})
NOT_IN_VERTEX_AI: Final = PlatformVariable("AIP_MODE", {"PREDICTION": "false"})


def parse_port_range(text: str) -> tuple[int, int]:
    """Return the first and the last port of a range given as FIRST-LAST.

    Raises:
        ValueError: the text is not such a range.
    """
    match = _RANGE.fullmatch(text)
    if match is None:
        raise ValueError("expected FIRST-LAST")
    first, last = int(match[1]), int(match[2])
    if not first <= last <= _MAX_PORT:
        raise ValueError(f"expected FIRST-LAST, in this order, up to {_MAX_PORT}")
    return first, last


def _port_range(text: str) -> str:
    if text:
        parse_port_range(text)
    return text


def _path(text: str) -> str:
    if _PATH.fullmatch(text) is None or "?" in text or "#" in text:
        raise ValueError("expected a path that begins with a slash")
    return text


@dataclass(frozen=True, kw_only=True)
class ManagedSettings:
    """Flags of the ports for managed platforms.

    Managed ports speak HTTP without TLS. They listen on the interface of the HTTP port.
    """

    TOPIC: ClassVar = Topic.MANAGED

    allow_sagemaker: bool = flag(
        False, "serve Amazon SageMaker's routes", flags.boolean, bare="true"
    )
    sagemaker_port: int = flag(
        8080,
        "the port of SageMaker's routes; 0: a free one",
        flags.port,
        platform=PlatformVariable("SAGEMAKER_BIND_TO_PORT"),
    )
    sagemaker_safe_port_range: str = flag(
        "",
        "FIRST-LAST: with SageMaker's routes, the ports that the others may have",
        _port_range,
        platform=PlatformVariable("SAGEMAKER_SAFE_PORT_RANGE"),
    )
    sagemaker_thread_count: int = flag(8, "accepted and ignored", flags.integer(1))
    sagemaker_default_model: str = flag(
        "",
        "the model of /invocations; empty: the only one that is ready",
        platform=PlatformVariable("SAGEMAKER_TRITON_DEFAULT_MODEL_NAME"),
    )
    sagemaker_inference_type: str = flag(
        "infer",
        "what /invocations is: infer, generate or generate_stream",
        flags.choice("infer", "generate", "generate_stream"),
        platform=PlatformVariable("SAGEMAKER_TRITON_INFERENCE_TYPE"),
    )
    sagemaker_ping_mode: str = flag(
        "ready",
        "what /ping reports: ready or live",
        flags.choice("ready", "live"),
        platform=PlatformVariable("SAGEMAKER_TRITON_PING_MODE"),
    )
    sagemaker_multi_model: bool = flag(
        False,
        "whether clients of SageMaker's routes load and unload models (multi-model mode); needs"
        " --model-control-mode=explicit",
        flags.boolean,
        bare="true",
        platform=PlatformVariable("SAGEMAKER_MULTI_MODEL"),
    )
    sagemaker_models_directory: str = flag(
        "/opt/ml/models", "in multi-model mode, the directory below which models to load may be"
    )
    sagemaker_repository: str = flag(
        "",
        "in multi-model mode, the model repository on this machine that loaded models are added to;"
        " default with nereid serve: its first --model-repository",
    )

    allow_vertex_ai: bool = flag(
        False, "serve Vertex AI's routes", flags.boolean, bare="true", platform=IN_VERTEX_AI
    )
    vertex_ai_port: int = flag(
        8080,
        "the port of Vertex AI's routes; 0: a free one",
        flags.port,
        platform=PlatformVariable("AIP_HTTP_PORT"),
    )
    vertex_ai_thread_count: int = flag(8, "accepted and ignored", flags.integer(1))
    vertex_ai_default_model: str = flag(
        "", "the model of Vertex AI's prediction route; empty: the only one that is ready"
    )
    vertex_ai_predict_route: str = flag(
        "/predict",
        "the path of Vertex AI's predictions",
        _path,
        platform=PlatformVariable("AIP_PREDICT_ROUTE"),
    )
    vertex_ai_health_route: str = flag(
        "/health",
        "the path of Vertex AI's health checks",
        _path,
        platform=PlatformVariable("AIP_HEALTH_ROUTE"),
    )

    @property
    def has_managed_port(self) -> bool:
        """True if at least one managed port is served."""
        return self.allow_sagemaker or self.allow_vertex_ai

    def managed_errors(self, ports: Mapping[str, int]) -> list[str]:
        """Return the errors in these settings, one line each.

        ports: the other ports that are served beside SageMaker's. Maps a port's flag to its number.
        """
        errors = []
        if self.allow_sagemaker and self.sagemaker_safe_port_range:
            first, last = parse_port_range(self.sagemaker_safe_port_range)
            errors += [
                f"{name}: port {port} is not in --sagemaker-safe-port-range={first}-{last}"
                for name, port in ports.items()
                if not first <= port <= last
            ]
        if self.allow_vertex_ai and self.vertex_ai_predict_route == self.vertex_ai_health_route:
            errors.append("--vertex-ai-predict-route and --vertex-ai-health-route are the same")
        return errors
