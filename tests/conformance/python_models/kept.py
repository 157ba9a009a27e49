"""Y = 2 X, and N = how many requests it has executed so far: one that was kept tells an old one."""

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.count = 0

    def execute(self, requests):
        return [self.answer(each) for each in requests]

    def answer(self, request):
        self.count += 1
        numbers = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
        count = np.array([self.count], np.float32)
        return pb_utils.InferenceResponse(
            [pb_utils.Tensor("Y", 2 * numbers), pb_utils.Tensor("N", count)]
        )
