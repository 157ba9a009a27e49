"""The same onnxruntime model for Triton's Python backend, written as well as one can.

Runs inside Triton's stub process, not inside the benchmark. The requests of one execute() call
are stacked into one session run, since that is what Nereid's executor does with a batch.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        config = json.loads(args["model_config"])
        self.input = config["input"][0]["name"]
        self.output = config["output"][0]["name"]
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.inter_op_num_threads = 1
        path = Path(args["model_repository"]) / args["model_version"] / "model.onnx"
        self.session = onnxruntime.InferenceSession(
            str(path), options, providers=["CPUExecutionProvider"]
        )

    def execute(self, requests: list[Any]) -> list[Any]:
        arrays = [
            pb_utils.get_input_tensor_by_name(request, self.input).as_numpy()
            for request in requests
        ]
        batch = arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
        (response,) = self.session.run([self.output], {self.input: batch})
        if len(arrays) == 1:
            return [pb_utils.InferenceResponse([pb_utils.Tensor(self.output, response)])]
        responses, start = [], 0
        for array in arrays:
            end = start + len(array)
            tensor = pb_utils.Tensor(self.output, response[start:end])
            responses.append(pb_utils.InferenceResponse([tensor]))
            start = end
        return responses
