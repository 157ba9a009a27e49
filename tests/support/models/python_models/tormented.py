"""The Python models of a campaign: which one this is, its configuration says."""

import json
import os

import numpy as np
import triton_python_backend_utils as pb_utils

VERSION = 1
FACTOR = 7


class TritonPythonModel:
    """The model."""

    def initialize(self, args):
        parameters = json.loads(args["model_config"])["parameters"]
        self.execute_one = getattr(self, parameters["kind"]["string_value"])
        self.runs = os.open(
            parameters["runs"]["string_value"], os.O_WRONLY | os.O_APPEND | os.O_CREAT
        )

    def execute(self, requests):
        responses = [self.execute_one(request) for request in requests]
        return None if responses[0] is None else responses

    def python(self, request):
        return self.response(FACTOR * self.value(request) + VERSION)

    def once(self, request):
        # One write: whole lines, whoever else writes.
        os.write(self.runs, f"{request.request_id()}\n".encode())
        return self.python(request)

    def bls(self, request):
        results = [self.call_steady(self.value(request)) for _ in range(2)]
        return self.response(sum(results))

    def decoupled(self, request):
        """Send as many responses as the parameter says."""
        sender = request.get_response_sender()
        count = json.loads(request.parameters())["count"]
        for place in range(count):
            sender.send(self.response(FACTOR * self.value(request) + VERSION + place))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    @staticmethod
    def call_steady(value):
        called = pb_utils.InferenceRequest(
            model_name="steady",
            requested_output_names=["RESULT"],
            inputs=[pb_utils.Tensor("VALUE", np.array([[value]], np.int64))],
        ).exec()
        if called.has_error():
            raise pb_utils.TritonModelException(called.error().message())
        (result,) = called.output_tensors()
        return int(result.as_numpy().ravel()[0])

    @staticmethod
    def value(request):
        return int(pb_utils.get_input_tensor_by_name(request, "VALUE").as_numpy().ravel()[0])

    @staticmethod
    def response(result):
        tensors = [
            pb_utils.Tensor("RESULT", np.array([result], np.int64)),
            pb_utils.Tensor("VERSION", np.array([VERSION], np.int64)),
        ]
        return pb_utils.InferenceResponse(tensors)
