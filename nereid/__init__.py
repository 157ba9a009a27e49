"""Library that all of Nereid's services share. It depends on none of them.

`nereid.model`, `nereid.serve` and the other names of `__all__` are imported when they are used, so
that services, which use none of them, import little.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from nereid.app.client import AsyncClient, Client, InferenceError
    from nereid.app.mesh import Mesh, MeshError, serve
    from nereid.app.model import Model, model
    from nereid.app.tensor import Tensor

__all__ = [
    "AsyncClient",
    "Client",
    "InferenceError",
    "Mesh",
    "MeshError",
    "Model",
    "Tensor",
    "model",
    "serve",
]

_MODULES: Final = {
    "AsyncClient": "client",
    "Client": "client",
    "InferenceError": "client",
    "Mesh": "mesh",
    "MeshError": "mesh",
    "Model": "model",
    "Tensor": "tensor",
    "model": "model",
    "serve": "mesh",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'nereid' has no attribute '{name}'")
    return getattr(import_module(f"nereid.app.{_MODULES[name]}"), name)
