"""The sum of a sequence's values, by correlation id; LOG tells what the model sees of the batch.

A negative value is an error. Decoupled, it sends as many responses as X has elements.
"""

import json

import numpy as np
import triton_python_backend_utils as pb_utils

CONTROLS = ("START", "END", "READY", "CORRID")
START = 1


def control(request, name):
    """A control tensor: its elements, shape and type."""
    tensor = pb_utils.get_input_tensor_by_name(request, name)
    if tensor is None:
        return None
    array = tensor.as_numpy()
    elements = [each.decode() if isinstance(each, bytes) else each for each in array.ravel()]
    return [
        [each if isinstance(each, str) else each.item() for each in elements],
        list(array.shape),
        str(array.dtype),
    ]


def seen(request):
    """Values of null requests are the server's own."""
    controls = {name: control(request, name) for name in CONTROLS}
    ready = controls["READY"] is None or bool(controls["READY"][0][0])
    x = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
    return {
        **{name: each for name, each in controls.items() if each is not None},
        "x": x.ravel().tolist() if ready else "null",
        "id": request.correlation_id(),
        "flags": request.flags(),
        "request": request.request_id(),
        "timeout": request.timeout(),
        "parameters": json.loads(request.parameters()),
    }


class TritonPythonModel:
    def initialize(self, args):
        self.sums = {}
        config = json.loads(args["model_config"])
        self.decoupled = pb_utils.using_decoupled_model_transaction_policy(config)
        self.dims = (1, 1) if config["max_batch_size"] else (1,)

    def execute(self, requests):
        log = json.dumps([seen(each) for each in requests])
        responses = [self.respond(each, log) for each in requests]
        return None if self.decoupled else responses

    def respond(self, request, log):
        x = pb_utils.get_input_tensor_by_name(request, "X").as_numpy().ravel()
        which = request.correlation_id()
        if request.flags() & START:
            self.sums[which] = 0.0
        if which and x.min() < 0:
            response = pb_utils.InferenceResponse(error=pb_utils.TritonError("it is negative"))
            return self.send([response], request) if self.decoupled else response
        if self.decoupled:
            return self.send([self.added(which, each, log) for each in x], request)
        return self.added(which, x.sum(), log)

    def added(self, which, value, log):
        self.sums[which] = self.sums.get(which, -100.0) + float(value)
        found = np.array([self.sums[which]], np.float32).reshape(self.dims)
        text = np.array([log.encode()], np.object_).reshape(self.dims)
        return pb_utils.InferenceResponse(
            [pb_utils.Tensor("Y", found), pb_utils.Tensor("LOG", text)]
        )

    def send(self, responses, request):
        sender = request.get_response_sender()
        for each in responses:
            sender.send(each)
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
