"""Takes seconds to be initialised, which it notes in the file `starts`; DOUBLE = 2 * VALUE, after
as many seconds as SECONDS says. The file `runs` has each request's id."""

import time
from pathlib import Path

import triton_python_backend_utils as pb_utils

START_S = 4.0


class TritonPythonModel:
    """The model."""

    def initialize(self, args):
        self._directory = Path(args["model_repository"])
        self._note("starts", "started")
        time.sleep(START_S)

    def execute(self, requests):
        responses = []
        for request in requests:
            self._note("runs", request.request_id())
            value = pb_utils.get_input_tensor_by_name(request, "VALUE").as_numpy()
            seconds = pb_utils.get_input_tensor_by_name(request, "SECONDS").as_numpy()
            time.sleep(float(seconds[0]))
            double = pb_utils.Tensor("DOUBLE", 2 * value)
            responses.append(pb_utils.InferenceResponse([double]))
        return responses

    def _note(self, name, line):
        with (self._directory / name).open("a") as file:
            file.write(line + "\n")
