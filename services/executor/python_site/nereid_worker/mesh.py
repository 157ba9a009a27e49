"""What a model can ask of the mesh that serves it."""

from __future__ import annotations

from typing import Any

from .errors import TritonModelException
from .link import link


def get_model_dir() -> str:
    """The directory of the model's version."""
    return link().model_dir


def load_model(model_name: str, config: str = "", files: dict[str, bytes] | None = None) -> None:
    """Have a model loaded, or loaded anew."""
    raise _not_yet()


def unload_model(model_name: str, unload_dependents: Any = False) -> None:
    """Have a model unloaded."""
    raise _not_yet()


def is_model_ready(model_name: str, model_version: str = "") -> bool:
    """Whether a model can be asked now."""
    raise _not_yet()


def _not_yet() -> TritonModelException:
    return TritonModelException("asking the server for other models is not offered yet")
