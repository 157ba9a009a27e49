"""OUT_<datatype> is IN_<datatype>, inverted in place; REPORT says what is wrong with inputs.

It keeps the arrays that it was given and responds with, and writes to those of earlier requests
as well. With a parameter `asks` it has the model of that name do the work, and writes to the
response.
"""

import json

import numpy as np
import triton_python_backend_utils as pb_utils

DATATYPES = ("UINT8", "BOOL", "INT32", "INT64", "FP16", "FP32", "FP64", "BYTES", "BF16")
INVERTED = bytes(range(255, -1, -1))


class TritonPythonModel:
    """The model."""

    @staticmethod
    def auto_complete_config(config):
        for datatype in DATATYPES:
            data_type = "TYPE_STRING" if datatype == "BYTES" else f"TYPE_{datatype}"
            tensor = {"data_type": data_type, "dims": [-1]}
            config.add_input({"name": f"IN_{datatype}", **tensor})
            config.add_output({"name": f"OUT_{datatype}", **tensor})
        config.add_output({"name": "REPORT", "data_type": "TYPE_STRING", "dims": [-1]})
        return config

    def initialize(self, args):
        parameters = json.loads(args["model_config"])["parameters"]
        self.asks = parameters.get("asks", {}).get("string_value")
        self.kept, self.kept_responses = [], []

    def execute(self, requests):
        return [self.respond(request.inputs()) for request in requests]

    def respond(self, inputs):
        if self.asks is None:
            return inverted_response(inputs, self.kept)
        request = pb_utils.InferenceRequest(
            model_name=self.asks,
            requested_output_names=[f"OUT_{each}" for each in DATATYPES] + ["REPORT"],
            inputs=inputs,
        )
        response = request.exec()
        if response.has_error():
            return response
        tensors = {each.name(): each for each in response.output_tensors()}
        reported = tensors.pop("REPORT").as_numpy().tolist()
        # Inverted twice, so that the client sees it if what this model gave was written to.
        again = inverted_response(list(tensors.values()), self.kept_responses)
        mine = inverted_response(inputs, self.kept)
        pairs = zip(mine.output_tensors()[:-2], again.output_tensors()[:-2], strict=True)
        for once, twice in pairs:
            if np.array_equal(once.as_numpy(), twice.as_numpy()):
                reported.append(f"{once.name()}: the other model wrote to what it was asked with")
        reported += again.output_tensors()[-1].as_numpy().tolist()
        reported += mine.output_tensors()[-1].as_numpy().tolist()
        return pb_utils.InferenceResponse([*mine.output_tensors()[:-1], report(reported)])


def report(faults):
    return pb_utils.Tensor("REPORT", np.array(faults, np.object_))


def inverted_response(tensors, kept):
    """A response of these tensors with all bits inverted, and what was wrong with them."""
    faults, outputs = [], []
    arrays = [inverted(tensor, faults) for tensor in tensors]
    for array in kept:
        array[...] = b"" if array.dtype == np.object_ else 0
    kept[:] = [each for each in arrays if isinstance(each, np.ndarray)]
    for tensor, array in zip(tensors, arrays, strict=True):
        name = "OUT_" + tensor.name().partition("_")[2]
        is_array = isinstance(array, np.ndarray)
        outputs.append(pb_utils.Tensor(name, array) if is_array else array)
    return pb_utils.InferenceResponse([*outputs, report(faults)])


def inverted(tensor, faults):
    """Write to a tensor's array in place; return a tensor of BF16 itself, which numpy has not."""
    name = tensor.name()
    if name.endswith("BF16"):
        again = pb_utils.Tensor.from_dlpack("again", tensor.to_dlpack())
        return pb_utils.Tensor.from_dlpack("OUT_BF16", again.to_dlpack())
    array = tensor.as_numpy()
    faults += [f"{name}: not {each}" for each in wanted_flags(array)]
    if name.endswith("BYTES"):
        array[:] = [text.translate(INVERTED) for text in array]
        return array
    shared = pb_utils.Tensor.from_dlpack("shared", tensor.to_dlpack())
    view = shared.as_numpy()
    faults += [f"{name} by DLPack: not {each}" for each in wanted_flags(view)]
    if not np.shares_memory(view, array) or shared.to_dlpack() is None:
        faults.append(f"{name}: DLPack has copied")
    if array.dtype == np.bool_:
        np.logical_not(view, out=view)
    else:
        bits = view.view(f"u{view.itemsize}")
        np.bitwise_not(bits, out=bits)
    return array


def wanted_flags(array):
    wanted = ("WRITEABLE", "ALIGNED", "C_CONTIGUOUS")
    return [flag.lower() for flag in wanted if not array.flags[flag]]
