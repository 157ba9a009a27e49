"""OUT = S as KIND says: as bytes, as str, reversed, of fixed length, or the lengths in N."""

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(each) for each in requests]

    def answer(self, request):
        texts = pb_utils.get_input_tensor_by_name(request, "S").as_numpy()
        kind = pb_utils.get_input_tensor_by_name(request, "KIND").as_numpy().ravel()[0].decode()
        lengths = np.array([[len(each) for each in row] for row in texts], np.int32)
        return pb_utils.InferenceResponse(
            [
                pb_utils.Tensor("OUT", getattr(self, kind)(texts).reshape(texts.shape)),
                pb_utils.Tensor("N", lengths.reshape(texts.shape)),
            ]
        )

    def same(self, texts):
        return texts

    def as_text(self, texts):
        return np.array([each.decode() for each in texts.ravel()], np.object_)

    def reverse(self, texts):
        return np.array([each[::-1] for each in texts.ravel()], np.object_)

    def fixed(self, texts):
        return np.array(texts.ravel().tolist(), np.bytes_)

    def unicode(self, texts):
        return np.array([each.decode() for each in texts.ravel()], np.str_)

    def strided(self, texts):
        return np.repeat(texts.ravel(), 2)[::2]

    def serialized(self, texts):
        return pb_utils.deserialize_bytes_tensor(pb_utils.serialize_byte_tensor(texts).item())
