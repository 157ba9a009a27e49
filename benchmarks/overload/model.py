"""Model whose capacity does not depend on the machine.

An instance waits for a set time for each batch of any size. The CPU stays free for the clients and
the mesh.
"""

import json
import struct
from pathlib import Path

from nereid.pb import kserve_pb2

NAME = "waits"
BATCH = 8
# Priorities of requests: urgent ones are executed first.
URGENT, ORDINARY = 1, 2

_CONFIG = """\
backend: "python"
max_batch_size: {batch}
input [ {{ name: "INPUT" data_type: TYPE_FP32 dims: [ 4 ] }} ]
output [ {{ name: "OUTPUT" data_type: TYPE_FP32 dims: [ 4 ] }} ]
instance_group [ {{ kind: KIND_CPU count: 1 }} ]
dynamic_batching {{ priority_levels: 2 default_priority_level: 2 {policy} }}
"""
_SCRIPT = """\
import time
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        time.sleep({seconds})
        responses = []
        for request in requests:
            tensor = pb_utils.get_input_tensor_by_name(request, "INPUT").as_numpy()
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT", tensor)]))
        return responses
"""
_PAYLOAD = struct.pack("<4f", 1, 2, 3, 4)


def write_repository(root: Path, execution_ms: float, policy: str = "") -> Path:
    """Write the repository; `policy` has the fields of the model's default_queue_policy."""
    if policy:
        policy = f"default_queue_policy {{ {policy} }}"
    directory = root / NAME / "1"
    directory.mkdir(parents=True)
    (directory / "model.py").write_text(_SCRIPT.format(seconds=execution_ms / 1000))
    (root / NAME / "config.pbtxt").write_text(_CONFIG.format(batch=BATCH, policy=policy))
    return root


def grpc_message(priority: int) -> bytes:
    """Return a request as gRPC's message."""
    request = kserve_pb2.ModelInferRequest(model_name=NAME)
    request.inputs.add(name="INPUT", datatype="FP32", shape=[1, 4])
    request.parameters["priority"].int64_param = priority
    request.raw_input_contents.append(_PAYLOAD)
    return request.SerializeToString()


def http_request(priority: int) -> bytes:
    """Return head and body of a request."""
    tensor = {
        "name": "INPUT",
        "datatype": "FP32",
        "shape": [1, 4],
        "parameters": {"binary_data_size": len(_PAYLOAD)},
    }
    parameters = {"priority": priority, "binary_data_output": True}
    header = json.dumps({"inputs": [tensor], "parameters": parameters}).encode()
    lines = (
        f"POST /v2/models/{NAME}/infer HTTP/1.1",
        "Host: overload",
        f"Inference-Header-Content-Length: {len(header)}",
        f"Content-Length: {len(header) + len(_PAYLOAD)}",
        "\r\n",
    )
    return "\r\n".join(lines).encode() + header + _PAYLOAD
