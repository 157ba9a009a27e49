"""X: how many iterations, and a mode. OUT: what each iteration has seen, as JSON."""

import json

import numpy as np
import triton_python_backend_utils as pb_utils

RAISE, RETURN, RETURN_ERROR, RESET, SET_FLAGS, KEEP = range(1, 7)
_START = 1


class TritonPythonModel:
    def initialize(self, args):
        config = json.loads(args["model_config"])
        self.decoupled = pb_utils.using_decoupled_model_transaction_policy(config)
        self.seen, self.senders = {}, {}

    def execute(self, requests):
        responses = [self.step(request) for request in requests]
        return None if self.decoupled else responses

    def step(self, request):
        ready = pb_utils.get_input_tensor_by_name(request, "READY").as_numpy().any()
        numbers = pb_utils.get_input_tensor_by_name(request, "X").as_numpy().ravel().tolist()
        # The inputs of an empty slot are whatever memory has.
        count, mode = (int(numbers[0]), int((numbers + [0])[1])) if ready else (1, 0)
        which = request.correlation_id()
        if request.flags() & _START:
            self.seen[which] = []
        seen = self.seen.setdefault(which, [])
        controls = {
            name: pb_utils.get_input_tensor_by_name(request, name).as_numpy().ravel().tolist()
            for name in ("START", "END", "READY", "CORRID")
        }
        seen.append([which, request.flags(), request.timeout(), request.parameters(), controls])
        last = len(seen) >= count
        if mode == RAISE and len(seen) == 2:
            raise ValueError("in the middle")
        if mode == SET_FLAGS:
            request.set_flags(3)
        out = np.array([[json.dumps(seen)]], np.object_)
        response = pb_utils.InferenceResponse([pb_utils.Tensor("OUT", out)])
        if mode == RETURN_ERROR:
            response = pb_utils.InferenceResponse(error=pb_utils.TritonError("not now"))
        if not last:
            request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
        if mode == RESET:
            request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_ALL)
            last = True
        if self.decoupled:
            sender = request.get_response_sender()
            if mode == KEEP:
                sender = self.senders.setdefault(which, sender)
            sender.send(response, pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL if last else 0)
            return None
        return response if last or mode in (RETURN, RETURN_ERROR) else None
