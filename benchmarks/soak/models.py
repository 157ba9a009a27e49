"""Repository of the soak: one small model for each way through Nereid."""

from pathlib import Path

from onnx import TensorProto, helper

_ONNX = """\
backend: "onnxruntime"
max_batch_size: 8
input [ {{ name: "INPUT" data_type: TYPE_{datatype} dims: [ -1 ] }} ]
output [ {{ name: "OUTPUT" data_type: TYPE_{datatype} dims: [ -1 ] }} ]
instance_group [ {{ kind: KIND_CPU count: 1 }} ]
dynamic_batching {{ }}
parameters {{ key: "intra_op_thread_count" value {{ string_value: "1" }} }}
{more}
"""
_PYTHON = """\
backend: "python"
input [ {{ name: "INPUT" data_type: TYPE_FP32 dims: [ -1 ] }} ]
output [ {{ name: "OUTPUT" data_type: TYPE_FP32 dims: [ -1 ] }} ]
instance_group [ {{ kind: KIND_CPU count: 1 }} ]
{more}
"""
# A first value below zero is a time to sleep, in ms: long enough for its client to leave.
_SCRIPT = """\
import time
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            tensor = pb_utils.get_input_tensor_by_name(request, "INPUT").as_numpy()
            if tensor.size and tensor[0] < 0:
                time.sleep(-float(tensor[0]) / 1000)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT", tensor)]))
        return responses
"""
# The model sends as many responses as the first value says.
_DECOUPLED = """\
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            tensor = pb_utils.get_input_tensor_by_name(request, "INPUT").as_numpy()
            sender = request.get_response_sender()
            for _ in range(int(tensor[0])):
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT", tensor)]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        return None
"""


def write_repository(root: Path) -> Path:
    """Write the models small, cached, text, script and decoupled."""
    for name, datatype, element, more in (
        ("small", "FP32", TensorProto.FLOAT, ""),
        ("cached", "FP32", TensorProto.FLOAT, "response_cache { enable: true }"),
        ("text", "STRING", TensorProto.STRING, ""),
    ):
        directory = root / name / "1"
        directory.mkdir(parents=True)
        (directory / "model.onnx").write_bytes(_graph(element))
        (root / name / "config.pbtxt").write_text(_ONNX.format(datatype=datatype, more=more))
    for name, source, more in (
        ("script", _SCRIPT, ""),
        ("decoupled", _DECOUPLED, "model_transaction_policy { decoupled: true }"),
    ):
        directory = root / name / "1"
        directory.mkdir(parents=True)
        (directory / "model.py").write_text(source)
        (root / name / "config.pbtxt").write_text(_PYTHON.format(more=more))
    return root


def _graph(element: int) -> bytes:
    shape = ["batch", "length"]
    body = helper.make_graph(
        [helper.make_node("Identity", ["INPUT"], ["OUTPUT"])],
        "identity",
        [helper.make_tensor_value_info("INPUT", element, shape)],
        [helper.make_tensor_value_info("OUTPUT", element, shape)],
    )
    proto = helper.make_model(body, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return bytes(proto.SerializeToString())
