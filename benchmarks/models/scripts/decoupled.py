"""Model that sends as many responses as the first value of the input says."""

from typing import Any

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """The model, under the name by which backends load it."""

    def execute(self, requests: list[Any]) -> None:
        """Send each request's responses."""
        for request in requests:
            values = pb_utils.get_input_tensor_by_name(request, "INPUT").as_numpy()
            sender = request.get_response_sender()
            for _ in range(int(values[0])):
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT", values)]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
