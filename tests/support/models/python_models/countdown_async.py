"""As countdown, with an async execute()."""

import asyncio

import numpy as np
import triton_python_backend_utils as pb_utils

_START = 1


class TritonPythonModel:
    def initialize(self, args):
        self.left = {}

    async def execute(self, requests):
        await asyncio.gather(*map(self.step, requests))

    async def step(self, request):
        which = request.correlation_id()
        if request.flags() & _START:
            count = pb_utils.get_input_tensor_by_name(request, "N").as_numpy().ravel()[0]
            self.left[which] = int(count)
        await asyncio.sleep(0)
        sender = request.get_response_sender()
        if which not in self.left:
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
            return
        self.left[which] -= 1
        last = self.left[which] <= 0
        outputs = [
            pb_utils.Tensor("LEFT", np.array([[self.left[which]]], np.int32)),
            pb_utils.Tensor("SIZES", np.array([["async"]], np.object_)),
            pb_utils.Tensor("CANCELLED", np.array([[False]], np.bool_)),
        ]
        response = pb_utils.InferenceResponse(outputs)
        sender.send(response, pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL if last else 0)
        if not last:
            request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
