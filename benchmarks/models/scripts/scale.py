"""First step of the ensemble: divides its input by two."""

from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """The model, under the name by which backends load it."""

    def execute(self, requests: list[Any]) -> list[Any]:
        """Return half of each request's input."""
        responses = []
        for request in requests:
            values = pb_utils.get_input_tensor_by_name(request, "INPUT").as_numpy()
            tensor = pb_utils.Tensor("OUTPUT", values * np.float32(0.5))
            responses.append(pb_utils.InferenceResponse([tensor]))
        return responses
