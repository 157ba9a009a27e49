"""Models that take commands, and what they reply."""

from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
from tritonclient.utils import InferenceServerException

from tests.support.mesh.mesh import Mesh


def say(mesh: Mesh, command: str, model: str = "talk", **options: Any) -> str:
    """Return the model's reply to a command."""
    with tritonclient.grpc.InferenceServerClient(mesh.grpc) as client:
        tensor = tritonclient.grpc.InferInput("COMMAND", [1], "BYTES")
        tensor.set_data_from_numpy(np.array([command], np.object_))
        result = client.infer(model, [tensor], **options)
        return str(result.as_numpy("REPLY")[0].decode())


def refusal(mesh: Mesh, command: str, model: str = "talk") -> tuple[str, str]:
    """The status and text of its failure."""
    with pytest.raises(InferenceServerException) as caught:
        say(mesh, command, model)
    return caught.value.status().removeprefix("StatusCode."), caught.value.message()
