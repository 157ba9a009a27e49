"""Asks other models, from execute() or from threads later, as COMMAND says, and tells the reply."""

import threading
import time
from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


def reply(text):
    return pb_utils.InferenceResponse([pb_utils.Tensor("REPLY", np.array([text], np.object_))])


def heard(model, command):
    """Return another model's reply to a command."""
    tensor = pb_utils.Tensor("COMMAND", np.array([command], np.object_))
    response = pb_utils.InferenceRequest(
        model_name=model, requested_output_names=["REPLY"], inputs=[tensor]
    ).exec()
    if response.has_error():
        return f"error: {response.error().message()}"
    (output,) = response.output_tensors()
    return output.as_numpy().ravel()[0].decode()


def wait_for(path):
    while not Path(path).exists():
        time.sleep(0.01)


class TritonPythonModel:
    """The model."""

    def execute(self, requests):
        (request,) = requests
        command = pb_utils.get_input_tensor_by_name(request, "COMMAND").as_numpy().ravel()[0]
        what, *rest = command.decode().split(" ", 1)
        return [getattr(self, what)(request, *rest)]

    def echo(self, _request, text):
        return reply(text)

    def ask(self, _request, words):
        return reply(heard(*words.split(" ", 1)))

    def ask_later(self, request, words):
        """Ask from a thread, when there is a file "go"; "held" says that it waits for that."""
        place, model, command = words.split(" ", 2)
        sender = request.get_response_sender()

        def answer():
            wait_for(Path(place, "go"))
            sender.send(reply(heard(model, command)), FINAL)

        threading.Thread(target=answer).start()
        Path(place, "held").touch()

    def meet(self, _request, place):
        """Tell that it has begun, and wait until somebody says that it is enough."""
        Path(place, "begun").touch()
        wait_for(Path(place, "enough"))
        return reply("enough")
