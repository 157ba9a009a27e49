"""Loads another model while it is loaded itself, and asks it."""

import json

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """The model."""

    def initialize(self, args):
        other = json.loads(args["model_config"])["parameters"]["other"]["string_value"]
        self.before = pb_utils.is_model_ready(other)
        pb_utils.load_model(other)
        self.after = pb_utils.is_model_ready(other)
        tensor = pb_utils.Tensor("COMMAND", np.array(["echo there"], np.object_))
        response = pb_utils.InferenceRequest(
            model_name=other, requested_output_names=["REPLY"], inputs=[tensor]
        ).exec()
        self.reply = pb_utils.get_output_tensor_by_name(response, "REPLY").as_numpy()[0].decode()

    def execute(self, requests):
        told = json.dumps([self.before, self.after, self.reply])
        tensor = pb_utils.Tensor("REPLY", np.array([told], np.object_))
        return [pb_utils.InferenceResponse([tensor]) for _ in requests]
