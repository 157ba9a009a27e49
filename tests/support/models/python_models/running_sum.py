"""The sum of a sequence's values so far, kept by correlation id; a sum that was never started is
NaN.
"""

import numpy as np
import triton_python_backend_utils as pb_utils

_START = 1
_END = 2


class TritonPythonModel:
    def initialize(self, args):
        self.sums = {}
        self.instance = args["model_instance_name"]

    def execute(self, requests):
        return [self.add(request) for request in requests]

    def add(self, request):
        ready = pb_utils.get_input_tensor_by_name(request, "READY")
        if ready is not None and not ready.as_numpy().ravel()[0]:
            total = float("nan")
        else:
            which, flags = request.correlation_id(), request.flags()
            total = 0.0 if flags & _START else self.sums.get(which, float("nan"))
            total += float(pb_utils.get_input_tensor_by_name(request, "X").as_numpy().sum())
            self.sums[which] = total
            if flags & _END:
                del self.sums[which]
        return pb_utils.InferenceResponse(
            [
                pb_utils.Tensor("SUM", np.array([[total]], np.float32)),
                pb_utils.Tensor("INSTANCE", np.array([[self.instance]], np.object_)),
            ]
        )
