"""A decoupled model that answers as COMMAND says: count, die, endless and others."""

import os
import threading

import numpy as np
import triton_python_backend_utils as pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


def reply(text):
    return pb_utils.InferenceResponse([pb_utils.Tensor("REPLY", np.array([text], np.object_))])


class TritonPythonModel:
    """The model."""

    @staticmethod
    def auto_complete_config(config):
        config.add_input({"name": "COMMAND", "data_type": "TYPE_STRING", "dims": [1]})
        config.add_output({"name": "REPLY", "data_type": "TYPE_STRING", "dims": [1]})
        config.set_model_transaction_policy({"decoupled": True})
        return config

    def initialize(self, _args):
        self.sent = 0
        self.cancelled = 0

    def execute(self, requests):
        for request in requests:
            command = pb_utils.get_input_tensor_by_name(request, "COMMAND").as_numpy().ravel()[0]
            what, *rest = command.decode().split(" ", 1)
            getattr(self, what)(request, request.get_response_sender(), *rest)

    def count(self, _request, sender, number):
        for each in range(int(number)):
            sender.send(reply(str(each)))
        sender.send(flags=FINAL)

    def die(self, _request, sender, number):
        for each in range(int(number)):
            sender.send(reply(str(each)))
        os._exit(1)

    def endless(self, request, sender):
        """Until it is cancelled, from a thread."""

        def send():
            while not request.is_cancelled():
                sender.send(reply("x" * 1000))
                self.sent += 1
            self.cancelled += 1
            sender.send(flags=FINAL)

        threading.Thread(target=send, daemon=True).start()

    def told(self, _request, sender):
        sender.send(reply(f"{self.sent} {self.cancelled}"), flags=FINAL)
