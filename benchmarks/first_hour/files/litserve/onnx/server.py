import litserve as ls
import numpy as np
import onnxruntime


class Onnx(ls.LitAPI):
    def setup(self, device):
        self.session = onnxruntime.InferenceSession("model.onnx")

    def predict(self, request):
        (output,) = self.session.run(None, {"x": np.array(request["x"], np.float32)})
        return {"output": output.tolist()}


if __name__ == "__main__":
    ls.LitServer(Onnx()).run(port=8000)
