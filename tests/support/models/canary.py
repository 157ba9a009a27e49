"""A Python model whose version 2 does what a file says: it fails, is slow, or differs."""

from typing import Final

# The file `mode` lies beside the versions' folders. Version 1 reads it as well: equal versions do
# equal work.
MODEL: Final = """
import pathlib, time
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        self.canary = args["model_version"] == "2"
        self.mode = pathlib.Path(args["model_repository"]) / "mode"

    def execute(self, requests):
        mode = self.mode.read_text()
        mode = mode if self.canary else ""
        if mode == "slow":
            time.sleep(0.03)
        responses = []
        for request in requests:
            value = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
            error = pb_utils.TritonError("broken canary") if mode == "failing" else None
            tensor = pb_utils.Tensor("OUTPUT0", value * 2 + (mode == "different"))
            responses.append(pb_utils.InferenceResponse([tensor], error))
        return responses
"""
