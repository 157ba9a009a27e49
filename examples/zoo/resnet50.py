"""`resnet50`: the architecture as it ships in the `onnx` package's own test data.

The test data keeps ResNet-50's 176 layers and its full cost, but its weights are constants, so it
returns the same thousand probabilities for every image: it shows that a large convolutional model
is served, and how fast, and says nothing about images. The graph's batch is fixed at 1.
"""

import shutil
from pathlib import Path

import numpy as np
import onnx
import onnxruntime

SOURCE = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
INPUT = "gpu_0/data_0"
OUTPUT = "gpu_0/softmax_1"
SHAPE = (1, 3, 224, 224)

CONFIG = f"""\
name: "resnet50"
platform: "onnxruntime_onnx"
max_batch_size: 0
input [
  {{
    name: "{INPUT}"
    data_type: TYPE_FP32
    dims: [ 1, 3, 224, 224 ]
  }}
]
output [
  {{
    name: "{OUTPUT}"
    data_type: TYPE_FP32
    dims: [ 1, 1000 ]
  }}
]
"""


def make(folder: Path) -> None:
    path = folder / "1" / "model.onnx"
    path.parent.mkdir()
    shutil.copyfile(SOURCE / "light_resnet50.onnx", path)
    (folder / "config.pbtxt").write_text(CONFIG)

    # The input that onnx's own test runner feeds: a ramp from 0 up to 1.
    size = int(np.prod(SHAPE))
    image = (np.arange(size).reshape(SHAPE) / size).astype(np.float32)
    tensor = onnx.TensorProto.FromString((SOURCE / "light_resnet50_output_0.pb").read_bytes())
    expected = onnx.numpy_helper.to_array(tensor)
    _check(path, image, expected)
    (folder / "expected").mkdir()
    np.savez_compressed(folder / "expected" / "expected.npz", image=image, softmax=expected)


def _check(path: Path, image: np.ndarray, expected: np.ndarray) -> None:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # the test data carries one unused initializer; no news to us
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    (output,) = session.run([OUTPUT], {INPUT: image})
    if not np.allclose(output, expected, rtol=1e-3, atol=1e-7):
        raise RuntimeError("resnet50 does not give the output that ships with it")
