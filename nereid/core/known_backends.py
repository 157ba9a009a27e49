"""Triton's backends, and the file names that identify their models.

This module does not read configurations.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Collection

ENSEMBLE_PLATFORM: Final = "ensemble"
TENSORRT_PLATFORM: Final = "tensorrt_plan"
ONNXRUNTIME: Final = "onnxruntime"
TENSORFLOW: Final = "tensorflow"
OPENVINO: Final = "openvino"
PYTORCH: Final = "pytorch"
PYTHON: Final = "python"
PYTHON_FILE: Final = "model.py"


class KnownBackend(NamedTuple):
    """A backend, and the platform and model file name by which it is recognised.

    If no platform implies the backend, platform is empty.
    """

    backend: str
    platform: str
    filename: str


# Known backends, in the order of Triton's checks.
KNOWN_BACKENDS: Final = (
    KnownBackend(TENSORFLOW, "tensorflow_savedmodel", "model.savedmodel"),
    KnownBackend(TENSORFLOW, "tensorflow_graphdef", "model.graphdef"),
    KnownBackend("tensorrt", TENSORRT_PLATFORM, "model.plan"),
    KnownBackend(ONNXRUNTIME, "onnxruntime_onnx", "model.onnx"),
    KnownBackend(OPENVINO, "", "model.xml"),
    KnownBackend(PYTORCH, "pytorch_libtorch", "model.pt"),
    KnownBackend(PYTHON, "", PYTHON_FILE),
)


def model_file_backend(filenames: Collection[str]) -> tuple[str, str] | None:
    """Return (backend, platform) for the files of a version directory; None if they imply none."""
    for known in KNOWN_BACKENDS:
        if known.filename in filenames:
            return known.backend, known.platform
    return None
