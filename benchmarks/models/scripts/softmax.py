"""Last step of the ensemble: computes the softmax of each row."""

from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """The model, under the name by which backends load it."""

    def execute(self, requests: list[Any]) -> list[Any]:
        """Return the softmax of each request's rows."""
        responses = []
        for request in requests:
            logits = pb_utils.get_input_tensor_by_name(request, "INPUT").as_numpy()
            powers = np.exp(logits - logits.max(axis=1, keepdims=True))
            tensor = pb_utils.Tensor("OUTPUT", powers / powers.sum(axis=1, keepdims=True))
            responses.append(pb_utils.InferenceResponse([tensor]))
        return responses
