"""A model for Triton's Python backend: a sentence's embedding from its tokens' hidden states.

The mean over the tokens that are not padding, at unit length.
"""

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests: list) -> list:
        return [self.respond(request) for request in requests]

    @staticmethod
    def respond(request: pb_utils.InferenceRequest) -> pb_utils.InferenceResponse:
        hidden, mask = (
            pb_utils.get_input_tensor_by_name(request, name).as_numpy()
            for name in ("last_hidden_state", "attention_mask")
        )
        weights = mask[:, :, None].astype(np.float32)
        mean = (hidden * weights).sum(axis=1) / weights.sum(axis=1)
        embedding = mean / np.linalg.norm(mean, axis=1, keepdims=True)
        return pb_utils.InferenceResponse(
            [pb_utils.Tensor("embedding", embedding.astype(np.float32))]
        )
