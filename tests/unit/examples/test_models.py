"""The models that need no download, made whole: ONNX Runtime gives what lies beside them."""

from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from examples.zoo import references, resnet50

pytestmark = pytest.mark.slow


def session(folder: Path) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    path = folder / "1" / "model.onnx"
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def test_digits(tmp_path: Path) -> None:
    # It imports scikit-learn, which whoever merely collects tests need not wait for.
    from examples.zoo import digits  # noqa: PLC0415

    folder = tmp_path / "digits"
    folder.mkdir()
    digits.make(folder)

    expected = references.load(tmp_path, "digits")
    accuracy = (expected["label"] == expected["digit"]).mean()
    assert len(expected["pixels"]) == digits.HELD_OUT
    assert accuracy > 0.95
    (label,) = session(folder).run(["label"], {"pixels": expected["pixels"]})
    np.testing.assert_array_equal(label, expected["label"])


def test_resnet50(tmp_path: Path) -> None:
    folder = tmp_path / "resnet50"
    folder.mkdir()
    resnet50.make(folder)

    expected = references.load(tmp_path, "resnet50")
    (softmax,) = session(folder).run(None, {resnet50.INPUT: expected["image"]})
    np.testing.assert_allclose(softmax, expected["softmax"], rtol=1e-3)
