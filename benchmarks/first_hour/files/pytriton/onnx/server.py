import numpy as np
import onnxruntime
from pytriton.decorators import batch
from pytriton.model_config import Tensor
from pytriton.triton import Triton

session = onnxruntime.InferenceSession("model.onnx")


@batch
def infer(x):
    return session.run(None, {"x": x})


with Triton() as triton:
    triton.bind(
        model_name="onnx",
        infer_func=infer,
        inputs=[Tensor(name="x", dtype=np.float32, shape=(-1,))],
        outputs=[Tensor(name="output", dtype=np.float32, shape=(-1,))],
    )
    triton.serve()
