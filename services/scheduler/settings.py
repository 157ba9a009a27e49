"""What the scheduler can be told at its start: the only reader of its flags and environment.

Knows names, defaults and what is refused before anything starts; nothing is acted on here.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from nereid.flags import address, boolean, choice, flag, integer, own_port, seconds
from nereid.mesh_tls import MeshTlsSettings
from nereid.telemetry import LogSettings
from nereid.tracing import TraceSettings
from services.scheduler.latencies import setting

_CONTROL_MODES: Final = ("none", "poll", "explicit")


def _backend_setting(text: str) -> str:
    """'backend,key=value', or ',key=value' for all backends."""
    backend_and_key, equals, _ = text.partition("=")
    _, comma, key = backend_and_key.partition(",")
    if not (equals and comma and key.strip()):
        raise ValueError("expected backend,key=value or ,key=value")
    return text


@dataclass(frozen=True, kw_only=True)
class Settings(MeshTlsSettings, TraceSettings, LogSettings):
    """The scheduler: model repositories, models' lives, queues and batches."""

    model_repository: tuple[str, ...] = flag(
        ..., "a directory of models; may be given several times", aliases=("--model-store",),
        repeated=True,
    )  # fmt: skip
    scheduler_address: tuple[str, ...] = flag(
        ("0.0.0.0:8003",),
        "where gateways and executors find the scheduler, host:port or unix:/path; may be given"
        " several times",
        address,
        repeated=True,
    )
    strict_readiness: bool = flag(
        True, "whether the server is ready only while every model is", boolean, bare="true"
    )
    exit_timeout_secs: float = flag(
        30.0, "how long requests under way may take to finish after SIGTERM", seconds
    )
    backend_config: tuple[str, ...] = flag(
        (), "backend,key=value, or ,key=value for all of them", _backend_setting, repeated=True
    )
    max_retries: int = flag(
        2, "how often a request runs again after the executor that had it was lost", integer(0)
    )
    no_executor_timeout_secs: float = flag(
        30.0, "how long requests wait while no executor has their model", seconds
    )
    max_queue_size: int = flag(
        16384, "how many requests of one model may wait; 0: any number", integer(0)
    )
    cache_address: str | None = flag(
        None, "the response cache, host:port or unix:/path; by default there is none", address
    )
    cache_timeout_ms: int = flag(
        5, "how long a request may wait for the cache before it is queued", integer(0)
    )
    metrics_config: tuple[str, ...] = flag(
        (),
        "histogram_latencies=true, summary_latencies=true, summary_quantiles=<quantile>,... or"
        " counter_latencies=false; may be given several times",
        setting,
        repeated=True,
    )
    metrics_port: int = flag(-1, "a port for the scheduler's own /metrics; -1: none", own_port)
    metrics_address: str = flag("0.0.0.0", "the interface of the metrics port")
    model_control_mode: str = flag(
        "none", "none: all models of the repositories are loaded at the start",
        choice(*_CONTROL_MODES),
    )  # fmt: skip
    disable_auto_complete_config: bool = flag(
        False, "take model configurations as they are written", boolean, bare="true"
    )
    exit_on_error: bool = flag(
        False, "accepted for Triton's sake: a model that fails to load never ends the scheduler",
        boolean, bare="true",
    )  # fmt: skip

    def faults(self) -> list[str]:
        """What is wrong with these settings, a line each."""
        faults = [
            f"--model-repository: '{path}': there is no such directory, or it may not be read"
            for path in self.model_repository
            if not (Path(path).is_dir() and os.access(path, os.R_OK | os.X_OK))
        ]
        if self.model_control_mode != "none":
            faults.append(
                f"--model-control-mode: '{self.model_control_mode}': not offered yet,"
                " only 'none' is: all models are loaded at the start"
            )
        return faults + self.mesh_tls_faults(self.scheduler_address)

    def backend_settings(self, backend: str) -> dict[str, str]:
        """What --backend-config says for this backend; its own settings win over those for all."""
        for_all: dict[str, str] = {}
        for_it: dict[str, str] = {}
        for text in self.backend_config:
            backend_and_key, _, value = text.partition("=")
            name, _, key = backend_and_key.partition(",")
            if name.strip() == "":
                for_all[key.strip()] = value.strip()
            elif name.strip() == backend:
                for_it[key.strip()] = value.strip()
        return for_all | for_it
