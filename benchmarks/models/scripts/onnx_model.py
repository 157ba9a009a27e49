"""Runs any ONNX model in the Python backend, as efficiently as possible.

The script runs in the backend's process, not in the benchmark. It joins the requests of one
execute() call to one session run, because Nereid's executor does the same with a batch. It computes
only the requested outputs, which are the same for all requests of the load.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """The model, under the name by which backends load it."""

    def initialize(self, args: dict[str, str]) -> None:
        """Open the session."""
        config = json.loads(args["model_config"])
        self.inputs = [spec["name"] for spec in config["input"]]
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.inter_op_num_threads = 1
        path = Path(args["model_repository"]) / args["model_version"] / "model.onnx"
        self.session = onnxruntime.InferenceSession(
            str(path), options, providers=["CPUExecutionProvider"]
        )

    def execute(self, requests: list[Any]) -> list[Any]:
        """Run the requests as one batch."""
        wanted = list(requests[0].requested_output_names())
        if len(requests) == 1:
            outputs = self.session.run(wanted, self.feed(requests[0]))
            return [_response(wanted, outputs)]
        feeds = [self.feed(request) for request in requests]
        feed = {name: np.concatenate([own[name] for own in feeds]) for name in self.inputs}
        outputs = self.session.run(wanted, feed)
        responses, start, first = [], 0, self.inputs[0]
        for own in feeds:
            end = start + len(own[first])
            responses.append(_response(wanted, [output[start:end] for output in outputs]))
            start = end
        return responses

    def feed(self, request: Any) -> dict[str, Any]:
        """Return a request's arrays."""
        return {
            name: pb_utils.get_input_tensor_by_name(request, name).as_numpy()
            for name in self.inputs
        }


def _response(names: list[str], outputs: list[Any]) -> Any:
    pairs = zip(names, outputs, strict=True)
    return pb_utils.InferenceResponse([pb_utils.Tensor(*pair) for pair in pairs])
