"""Y = X. Its response states a sequence for the steps behind it in an ensemble: X's whole part is
the id, and a fraction begins it.
"""

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.state(request) for request in requests]

    def state(self, request):
        x = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
        value = float(x.ravel()[0])
        parameters = {"sequence_id": int(value), "sequence_start": value % 1 > 0}
        return pb_utils.InferenceResponse([pb_utils.Tensor("Y", x)], parameters=parameters)
