"""A model that multiplies, whose factor shows which load of it responds."""

from __future__ import annotations

from typing import Any

import numpy as np
import tritonclient.http as http_client

from tests.support.mesh.mesh import Mesh

LOAD = "/v2/repository/models/scaler/load"
UNLOAD = "/v2/repository/models/scaler/unload"
CONFIG = "max_batch_size: 16\ndynamic_batching { }\n"


def rows(value: float) -> np.ndarray[Any, Any]:
    return np.full((1, 8), value, np.float32)


def scaled(mesh: Mesh, value: float = 1, version: str = "") -> float:
    """Return the model's output for a number."""
    with http_client.InferenceServerClient(mesh.http) as client:
        tensor = http_client.InferInput("INPUT0", [1, 8], "FP32")
        tensor.set_data_from_numpy(rows(value))
        response = client.infer("scaler", [tensor], model_version=version).as_numpy("OUTPUT0")
        assert response is not None
        return float(response[0, 0])
