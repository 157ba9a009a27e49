"""Choice of a model's backend, from its platform, its file's name or the model's own name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nereid.core.errors import InvalidArgument
from nereid.core.known_backends import (
    KNOWN_BACKENDS,
    PYTHON_FILE,
    PYTORCH,
    TENSORFLOW,
    TORCH_AOTI_PLATFORM,
    KnownBackend,
)

if TYPE_CHECKING:
    from collections.abc import Collection

    from nereid.pb.model_config_pb2 import ModelConfig


def fill_backend(config: ModelConfig, *, model_name: str, filenames: Collection[str] = ()) -> None:
    """Fill in missing fields in place; raise InvalidArgument if the backend is unclear."""
    if not config.name:
        config.name = model_name
    for known in KNOWN_BACKENDS:
        if _implies(config, known, filenames):
            _fill_fields(config, known)
            return
    if config.backend or config.platform or config.default_model_filename:
        return
    # A model of a custom backend may be named "anything.<backend>".
    _, dot, backend = model_name.partition(".")
    if not dot:
        raise InvalidArgument(
            f"Invalid model name: Could not determine backend for model '{model_name}' with no "
            "backend in model configuration. Expected model name of the form "
            "'model.<backend_name>'."
        )
    config.backend = backend
    config.default_model_filename = f"model.{backend}"


def _implies(config: ModelConfig, known: KnownBackend, filenames: Collection[str]) -> bool:
    if config.backend == PYTORCH:
        # Without a platform it is TorchScript, whatever files there are.
        is_aoti = config.platform == TORCH_AOTI_PLATFORM
        return known.backend == PYTORCH and is_aoti == (known.platform == TORCH_AOTI_PLATFORM)
    # TensorFlow has two platforms, so the backend does not determine the platform.
    if config.backend and known.backend != TENSORFLOW:
        return config.backend == known.backend
    if config.backend not in ("", known.backend):
        return False
    if config.platform and config.platform == known.platform:
        return True
    if config.default_model_filename:
        return config.default_model_filename == known.filename
    return not config.platform and known.filename in filenames


def _fill_fields(config: ModelConfig, known: KnownBackend) -> None:
    config.backend = known.backend
    if not config.platform:
        config.platform = known.platform
    is_python_source = known.backend == PYTORCH and config.runtime == PYTHON_FILE
    if not config.default_model_filename and not is_python_source:
        config.default_model_filename = known.filename
