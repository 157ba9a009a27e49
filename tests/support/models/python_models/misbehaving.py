"""Doubles its input, unless the file `mode` beside it says otherwise."""

import os
import threading
from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils

MODE = Path(__file__).parent / "mode"
LEAKED = []


def mode():
    return MODE.read_text() if MODE.exists() else ""


class TritonPythonModel:
    """The model."""

    def execute(self, requests):
        responses = []
        for request in requests:
            array = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
            output = array * np.float32(2)
            wanted = mode()
            while wanted == "hang" and mode() == "hang":
                threading.Event().wait(0.05)
            if wanted == "crash":
                os._exit(7)
            if wanted == "leak":
                LEAKED.append(np.ones(1 << 20))
            if wanted == "slow":
                threading.Event().wait(0.5)
            if wanted == "wrong":
                output = output + np.float32(1)
            if wanted == "huge":
                output = np.ones((1, 8 << 20), np.float32)
            tensor = pb_utils.Tensor("OUTPUT0", output)
            responses.append(pb_utils.InferenceResponse([tensor]))
        return responses
