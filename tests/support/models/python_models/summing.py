"""A model whose implicit state H grows by the sum of X, and is its output Y as well."""

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.add(request) for request in requests]

    def add(self, request):
        x, state = (
            pb_utils.get_input_tensor_by_name(request, name).as_numpy() for name in ("X", "H")
        )
        state = state + x.sum()
        return pb_utils.InferenceResponse(
            [pb_utils.Tensor("Y", state), pb_utils.Tensor("H_OUT", state)]
        )
