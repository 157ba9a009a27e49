"""A mesh that lets clients do all that they can ask for: load models, share memory, set, trace."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from tests.support.mesh.mesh import Mesh, running
from tests.support.mesh.nvidia_clients import Client
from tests.support.models.e2e_models import save_multiplier, save_scaler
from tests.support.peers.otlp_receiver import receiver

CONFIG = 'max_batch_size: 16\ndynamic_batching { }\noutput { name: "OUTPUT0" }\n'
# The logging API asks for who this is; over gRPC the header's name has a prefix.
USER, PASSWORD = "user", "pass"
_GUARD = "logging:authorization=Basic dXNlcjpwYXNz"


@contextmanager
def open_mesh(root: Path, engine: str) -> Iterator[Mesh]:
    """`scaler` doubles FP32 [8]; `slow` triples INT64 [1] and takes a tenth of a second."""
    save_scaler(root / "models", "scaler", 2, CONFIG)
    save_multiplier(root / "models", "slow", 3, "instance_group [{ count: 1 kind: KIND_CPU }]")
    with receiver() as otlp:
        flags = [
            f"--grpc-engine={engine}",
            "--model-control-mode=explicit",
            "--load-model=*",
            "--allow-client-shm=true",
            "--trace-config=mode=opentelemetry",
            "--trace-config=level=TIMESTAMPS",
            "--trace-config=rate=1",
            f"--trace-config=opentelemetry,url={otlp.url}",
            f"--http-restricted-api={_GUARD}",
            f"--grpc-restricted-protocol={_GUARD}",
        ]
        with running(root / "models", root / "log", *flags) as mesh:
            yield mesh


def doubled(client: Client, rows: int = 1, version: str = "") -> float:
    """Return the scaler's response to ones."""
    ones = np.ones((rows, 8), np.float32)
    response = client.infer("scaler", {"INPUT0": ones}, model_version=version).as_numpy("OUTPUT0")
    assert response.shape == ones.shape
    return float(response[0, 0])


def index(client: Client) -> dict[tuple[str, str], tuple[str, str]]:
    """State and reason of each model and version."""
    reported = client.reported("get_model_repository_index")
    models = reported if client.is_http else reported["models"]
    return {
        (each["name"], each.get("version", "")): (each["state"], each.get("reason", ""))
        for each in models
    }
