"""Y = 2 X, and how many requests came together in EXECUTED; a negative X is an error."""

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(each, len(requests)) for each in requests]

    def answer(self, request, count):
        numbers = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
        if (numbers < 0).any():
            return pb_utils.InferenceResponse(
                error=pb_utils.TritonError("it is negative", pb_utils.TritonError.INVALID_ARG)
            )
        return pb_utils.InferenceResponse([pb_utils.Tensor("Y", numbers * np.float32(2))])
