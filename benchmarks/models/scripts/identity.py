"""Model that returns its input, for Triton's Python backend. Runs in Triton's stub process."""

from typing import Any

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """The model, under the name by which backends load it."""

    def execute(self, requests: list[Any]) -> list[Any]:
        """Return each request's input."""
        return [
            pb_utils.InferenceResponse(
                [
                    pb_utils.Tensor(
                        "OUTPUT", pb_utils.get_input_tensor_by_name(request, "INPUT").as_numpy()
                    )
                ]
            )
            for request in requests
        ]
