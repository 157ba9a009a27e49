"""Charges an account: a line in the file `charges` at the begin of a request, one at its end.

SECONDS is how long that takes; TOTAL is what the response says.
"""

import time
from pathlib import Path

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """The model."""

    def initialize(self, args):
        self._charges = Path(args["model_repository"]) / "charges"

    def execute(self, requests):
        responses = []
        for request in requests:
            seconds = pb_utils.get_input_tensor_by_name(request, "SECONDS").as_numpy()
            self._note(f"begin {request.request_id()}")
            time.sleep(float(seconds[0]))
            self._note(f"end {request.request_id()}")
            total = pb_utils.Tensor("TOTAL", 2 * seconds)
            responses.append(pb_utils.InferenceResponse([total]))
        return responses

    def _note(self, line):
        with self._charges.open("a") as file:
            file.write(line + "\n")
