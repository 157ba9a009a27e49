"""Completes its configuration as the model's parameter `complete` says."""

import json

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        parameters = config.as_dict()["parameters"]
        code = parameters["complete"]["string_value"] if "complete" in parameters else ""
        exec(code, {"config": config, "json": json})
        return config

    def execute(self, requests):
        return [
            pb_utils.InferenceResponse(
                [pb_utils.Tensor("Y", each.inputs()[0].as_numpy()) for _ in range(1)]
            )
            for each in requests
        ]
