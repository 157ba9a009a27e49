"""OUTPUT is the sum of the sequence's INPUTs so far, by correlation id; with the control CORRID,
the id is added to the last one.
"""

import numpy as np
import triton_python_backend_utils as pb_utils


def control(request, name):
    tensor = pb_utils.get_input_tensor_by_name(request, name)
    return None if tensor is None else tensor.as_numpy().ravel()[0]


class TritonPythonModel:
    def initialize(self, args):
        self.sums = {}

    def execute(self, requests):
        return [self.accumulate(request) for request in requests]

    def accumulate(self, request):
        total = 0
        if control(request, "READY"):
            which = request.correlation_id()
            before = 0 if control(request, "START") else self.sums[which]
            total = int(pb_utils.get_input_tensor_by_name(request, "INPUT").as_numpy().sum())
            total += before
            self.sums[which] = total
            if control(request, "END"):
                total += int(control(request, "CORRID"))
        # As any 32-bit sum: it may overflow.
        output = np.array([[total]], np.int64).astype(np.int32)
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT", output)])
