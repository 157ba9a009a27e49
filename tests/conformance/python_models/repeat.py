"""As many answers as X has elements, an element in each; none if X is empty."""

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            numbers = pb_utils.get_input_tensor_by_name(request, "X").as_numpy().ravel()
            for number in numbers:
                if number < 0:
                    error = pb_utils.TritonError("it is negative")
                    sender.send(pb_utils.InferenceResponse(error=error))
                    continue
                found = np.array([number], np.float32)
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("Y", found)]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
