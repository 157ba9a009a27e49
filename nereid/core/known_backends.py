"""Triton's backends, and the file names that identify their models."""

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
TORCH_AOTI_PLATFORM: Final = "torch_aoti"
PYTHON: Final = "python"
PYTHON_FILE: Final = "model.py"


class KnownBackend(NamedTuple):
    """A backend, and how it is recognised. The platform is empty if none implies the backend."""

    backend: str
    platform: str
    filename: str


# In the order of Triton's checks.
KNOWN_BACKENDS: Final = (
    KnownBackend(TENSORFLOW, "tensorflow_savedmodel", "model.savedmodel"),
    KnownBackend(TENSORFLOW, "tensorflow_graphdef", "model.graphdef"),
    KnownBackend("tensorrt", TENSORRT_PLATFORM, "model.plan"),
    KnownBackend(ONNXRUNTIME, "onnxruntime_onnx", "model.onnx"),
    KnownBackend(OPENVINO, "", "model.xml"),
    KnownBackend(PYTORCH, "pytorch_libtorch", "model.pt"),
    KnownBackend(PYTORCH, TORCH_AOTI_PLATFORM, "model.pt2"),
    KnownBackend(PYTHON, "", PYTHON_FILE),
)


def model_file_backend(filenames: Collection[str]) -> tuple[str, str] | None:
    """Return (backend, platform) for a version directory's files; None if they imply none."""
    for known in KNOWN_BACKENDS:
        if known.filename in filenames:
            return known.backend, known.platform
    return None
