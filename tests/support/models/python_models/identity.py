"""OUT_<datatype> = IN_<datatype>, for as many datatypes as a request has."""

import triton_python_backend_utils as pb_utils

DATATYPES = (
    *("BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64"),
    *("FP16", "FP32", "FP64", "BYTES", "BF16"),
)


class TritonPythonModel:
    """The model."""

    @staticmethod
    def auto_complete_config(config):
        for datatype in DATATYPES:
            data_type = "TYPE_STRING" if datatype == "BYTES" else f"TYPE_{datatype}"
            tensor = {"data_type": data_type, "dims": [-1]}
            config.add_input({"name": f"IN_{datatype}", "optional": True, **tensor})
            config.add_output({"name": f"OUT_{datatype}", **tensor})
        config.set_max_batch_size(8)
        config.set_dynamic_batching()
        return config

    def execute(self, requests):
        return [pb_utils.InferenceResponse([*map(same, each.inputs())]) for each in requests]


def same(tensor):
    name = tensor.name().replace("IN_", "OUT_")
    if name == "OUT_BF16":
        return pb_utils.Tensor.from_dlpack(name, tensor.to_dlpack())
    return pb_utils.Tensor(name, tensor.as_numpy())
