import bentoml
import numpy as np
import onnxruntime


@bentoml.service
class Onnx:
    def __init__(self) -> None:
        self.session = onnxruntime.InferenceSession("model.onnx")

    @bentoml.api
    def infer(self, x: np.ndarray) -> np.ndarray:
        return self.session.run(None, {"x": x.astype(np.float32)})[0]
