"""Counts down from N, one step an iteration: decoupled, with a response for each; else with one.

MODE: "wait" waits in the second iteration until the file named by WAIT is gone, which it makes, or
the client has cancelled.
"""

import time
from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils

_START = 1


def text_of(request, name):
    tensor = pb_utils.get_input_tensor_by_name(request, name)
    return "" if tensor is None else tensor.as_numpy().ravel()[0].decode()


class TritonPythonModel:
    def initialize(self, args):
        self.decoupled = pb_utils.using_decoupled_model_transaction_policy(
            pb_utils.json.loads(args["model_config"])
        )
        # By correlation id: what is left, and the sizes of the batches.
        self.loops = {}

    def execute(self, requests):
        responses = []
        for request in requests:
            which = request.correlation_id()
            if request.flags() & _START:
                count = pb_utils.get_input_tensor_by_name(request, "N").as_numpy().ravel()[0]
                self.loops[which] = [int(count), []]
            if which in self.loops:
                responses.append(self.step(request, self.loops[which], len(requests)))
            else:
                responses.append(self.end_null_request(request))
        return None if self.decoupled else responses

    def end_null_request(self, request):
        if not self.decoupled:
            return pb_utils.InferenceResponse([])
        request.get_response_sender().send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        return None

    def step(self, request, loop, size):
        mode = text_of(request, "MODE")
        loop[0] -= 1
        loop[1].append(f"{size}{'s' * (request.flags() & _START)}")
        if mode == "wait" and len(loop[1]) == 2:
            wait = Path(text_of(request, "WAIT"))
            wait.touch()
            while wait.exists() and not request.is_cancelled():
                time.sleep(0.01)
        last = loop[0] <= 0
        if not last:
            request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
        response = pb_utils.InferenceResponse(
            [
                pb_utils.Tensor("LEFT", np.array([[loop[0]]], np.int32)),
                pb_utils.Tensor("SIZES", np.array([[" ".join(loop[1])]], np.object_)),
                pb_utils.Tensor("CANCELLED", np.array([[request.is_cancelled()]], np.bool_)),
            ]
        )
        if not self.decoupled:
            return response if last else None
        sender = request.get_response_sender()
        sender.send(response, pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL if last else 0)
        return None
