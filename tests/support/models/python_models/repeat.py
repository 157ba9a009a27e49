"""A decoupled model: COUNT answers of 0, 1, … to each request, given as MODE says."""

import threading
from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


class TritonPythonModel:
    """The model. Of answers without end it notes each in the file "sent" of its directory."""

    def initialize(self, args):
        self.sent = Path(args["model_repository"], "sent")

    def execute(self, requests):
        for request in requests:
            count, size = (
                int(pb_utils.get_input_tensor_by_name(request, name).as_numpy()[0])
                for name in ("COUNT", "SIZE")
            )
            mode = pb_utils.get_input_tensor_by_name(request, "MODE").as_numpy()[0].decode()
            getattr(self, mode)(request, request.get_response_sender(), count, size)

    @staticmethod
    def answer(number, size):
        numbers = np.array([number], np.int32)
        # No byte is beside itself: that would look like memory that nobody has written.
        blob = np.resize(np.array([number % 256, 0], np.uint8), size)
        tensors = [pb_utils.Tensor("OUT", numbers), pb_utils.Tensor("BLOB", blob)]
        return pb_utils.InferenceResponse(tensors)

    def then_end(self, request, sender, count, size):
        for number in range(count):
            sender.send(self.answer(number, size))
        sender.send(flags=FINAL)

    def later(self, request, sender, count, size):
        threading.Thread(target=self.then_end, args=(request, sender, count, size)).start()

    def for_ever(self, request, sender, count, size):
        threading.Thread(target=self.go_on, args=(sender, size)).start()

    def go_on(self, sender, size):
        number = 0
        with self.sent.open("ab", buffering=0) as sent:
            while not sender.is_cancelled():
                sender.send(self.answer(number, size))
                sent.write(b".")
                number += 1
        sender.send(flags=FINAL)
        self.sent.with_name("cancelled").touch()
