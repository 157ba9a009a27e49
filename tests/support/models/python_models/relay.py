"""Calls the first of the models that a request names, with the rest; a decoupled one does it late.

The request "hold" of a decoupled model is open until the next "release".
"""

import json
import threading

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        config = json.loads(args["model_config"])
        self.decoupled = pb_utils.using_decoupled_model_transaction_policy(config)
        self.held = []

    def execute(self, requests):
        if not self.decoupled:
            return [self.relay(request) for request in requests]
        for request in requests:
            threading.Thread(target=self.respond_late, args=(request,)).start()
        return None

    def respond_late(self, request):
        sender = request.get_response_sender()
        if path_of(request) == "hold":
            self.held.append(sender)
            sender.send(reply("held"))
            return
        if path_of(request) == "release":
            while self.held:
                self.held.pop().send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        sender.send(self.relay(request), pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def relay(self, request):
        model, _, rest = path_of(request).partition(">")
        if model in ("", "release"):
            return reply("leaf")
        path = pb_utils.Tensor("PATH", np.array([[rest.encode()]], np.object_))
        call = pb_utils.InferenceRequest(
            model_name=model, requested_output_names=["REPLY"], inputs=[path]
        )
        response = call.exec()
        if response.has_error():
            return pb_utils.InferenceResponse(error=response.error())
        text = pb_utils.get_output_tensor_by_name(response, "REPLY").as_numpy().reshape(-1)[0]
        return reply(text.decode())


def path_of(request):
    return pb_utils.get_input_tensor_by_name(request, "PATH").as_numpy().reshape(-1)[0].decode()


def reply(text):
    tensor = pb_utils.Tensor("REPLY", np.array([[text.encode()]], np.object_))
    return pb_utils.InferenceResponse([tensor])
