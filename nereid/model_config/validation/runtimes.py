"""Checks the name of a backend's library, the field `runtime` of a configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from nereid.core.errors import InvalidArgument
from nereid.core.known_backends import KNOWN_BACKENDS, PYTHON_FILE, PYTORCH

if TYPE_CHECKING:
    from nereid.pb.model_config_pb2 import ModelConfig

_BACKENDS: Final = frozenset({"identity", *(known.backend for known in KNOWN_BACKENDS)})


def validate_runtime(config: ModelConfig) -> None:
    """Raise InvalidArgument if Triton's backend has no library of this name.

    Other backends may read the field as they like.
    """
    backend, runtime = config.backend, config.runtime
    if not runtime or backend not in _BACKENDS or runtime == f"libtriton_{backend}.so":
        return
    kind = "backend library"
    if runtime == PYTHON_FILE:
        # PyTorch's backend refuses it with a hint.
        if backend == PYTORCH:
            return
        kind = "Python backend based backend library"
    raise InvalidArgument(f"unable to find {kind} '{runtime}' for model '{config.name}'")
