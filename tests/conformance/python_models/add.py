"""Y = A + B; B may be missing."""

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(each) for each in requests]

    def answer(self, request):
        numbers = pb_utils.get_input_tensor_by_name(request, "A").as_numpy()
        other = pb_utils.get_input_tensor_by_name(request, "B")
        if other is not None:
            numbers = numbers + other.as_numpy()
        return pb_utils.InferenceResponse([pb_utils.Tensor("Y", numbers)])
