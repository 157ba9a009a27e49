"""A model that is ready if the file 'mood' in its folder says so; executes for as long as 'busy' is
there. With the parameter 'async' it says so by a coroutine.
"""

import json
import os
import threading
from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils

FOLDER = Path(__file__).parent
MOODS = {"yes": True, "no": False, "vague": "yes", "number": 1}


def mood():
    return (FOLDER / "mood").read_text()


def pause():
    threading.Event().wait(0.01)


class TritonPythonModel:
    """The model."""

    def initialize(self, args):
        if "async" in json.loads(args["model_config"])["parameters"]:
            self.is_ready = self.is_ready_in_time

    def execute(self, requests):
        (FOLDER / "executing").touch()
        while (FOLDER / "busy").exists():
            pause()
        reply = pb_utils.Tensor("REPLY", np.array(["done"], np.object_))
        return [pb_utils.InferenceResponse([reply]) for _ in requests]

    def is_ready(self):
        with (FOLDER / "asked").open("a") as asked:
            asked.write("x")
        while mood() == "hang":
            pause()
        if mood() == "die":
            os._exit(7)
        # It raises for what it does not know.
        return MOODS[mood()]

    async def is_ready_in_time(self):
        return MOODS[mood()]
