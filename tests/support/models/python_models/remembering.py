"""Passes its inputs on to its implicit states: TEXTS grows by WORD, TOTAL by its length."""

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.remember(request) for request in requests]

    def remember(self, request):
        word, texts, total = (
            pb_utils.get_input_tensor_by_name(request, name).as_numpy()
            for name in ("WORD", "TEXTS", "TOTAL")
        )
        text = word.ravel()[0].decode()
        if text == "raise":
            raise ValueError("no")
        tensors = [
            pb_utils.Tensor("SEEN", np.array([[b"|".join(texts.ravel().tolist())]], np.object_)),
            pb_utils.Tensor("TOTAL_OUT", total + len(text)),
        ]
        if text == "wrong":
            tensors.append(pb_utils.Tensor("TEXTS_OUT", np.zeros((1, 2), np.int32)))
        elif text != "skip":
            longer = np.concatenate([texts, word.reshape(1, 1)], axis=1)
            tensors.append(pb_utils.Tensor("TEXTS_OUT", longer))
        return pb_utils.InferenceResponse(tensors)
