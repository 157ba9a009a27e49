"""`digits`: a small network trained on scikit-learn's handwritten digits, exported by skl2onnx.

Same data, split and seed each time. The held-out images, the true digits and what ONNX Runtime
offline results lie beside the model, so that a client can check that serving changes nothing.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray
from skl2onnx import to_onnx
from skl2onnx.common.data_types import FloatTensorType
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from threadpoolctl import threadpool_limits

SEED = 0
HELD_OUT = 360
OPSET = {"": 17, "ai.onnx.ml": 3}
IR_VERSION = 8

# The graph's `label` is a vector, one number per image: without the batch nothing is left of its
# shape, and a configuration says that with `reshape`.
CONFIG = """\
name: "digits"
platform: "onnxruntime_onnx"
max_batch_size: 64
input [
  {
    name: "pixels"
    data_type: TYPE_FP32
    dims: [ 64 ]
  }
]
output [
  {
    name: "label"
    data_type: TYPE_INT64
    dims: [ 1 ]
    reshape: { shape: [ ] }
  },
  {
    name: "probabilities"
    data_type: TYPE_FP32
    dims: [ 10 ]
    label_filename: "labels.txt"
  }
]
dynamic_batching { }
"""

NAMES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


def make(folder: Path) -> None:
    data = load_digits()
    train_images, images, train_digits, digits = train_test_split(
        data.data.astype(np.float32),
        data.target.astype(np.int64),
        test_size=HELD_OUT,
        random_state=SEED,
        stratify=data.target,
    )
    network = MLPClassifier(hidden_layer_sizes=(64,), max_iter=400, random_state=SEED)
    classifier = make_pipeline(StandardScaler(), network)
    # The matrices are small: threads would wait for each other, and long on a busy machine.
    with threadpool_limits(1):
        classifier.fit(train_images, train_digits)

    path = folder / "1" / "model.onnx"
    path.parent.mkdir()
    path.write_bytes(_export(classifier))
    label, probabilities = _run(path, images)
    if not np.array_equal(label, classifier.predict(images)):
        raise RuntimeError("the exported digits model disagrees with scikit-learn")

    (folder / "config.pbtxt").write_text(CONFIG)
    (folder / "labels.txt").write_text("".join(f"{name}\n" for name in NAMES))
    _write_references(
        folder / "expected",
        {"pixels": images, "digit": digits, "label": label, "probabilities": probabilities},
    )


def _export(classifier: Any) -> bytes:
    model = to_onnx(
        classifier,
        initial_types=[("pixels", FloatTensorType([None, 64]))],
        options={"zipmap": False},
        target_opset=OPSET,
    )
    model.ir_version = IR_VERSION
    return bytes(model.SerializeToString())


def _run(path: Path, images: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    label, probabilities = session.run(["label", "probabilities"], {"pixels": images})
    return label, probabilities


def _write_references(folder: Path, arrays: dict[str, NDArray[Any]]) -> None:
    folder.mkdir()
    np.savez_compressed(folder / "expected.npz", allow_pickle=False, **arrays)
    # The first held-out image as a request, for `curl -d @...`.
    pixels = [int(value) for value in arrays["pixels"][0]]
    tensor = {"name": "pixels", "shape": [1, 64], "datatype": "FP32", "data": pixels}
    (folder / "request.json").write_text(json.dumps({"inputs": [tensor]}) + "\n")
