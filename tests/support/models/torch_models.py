"""Small TorchScript models, for tests."""

from __future__ import annotations

import importlib
from pathlib import Path


def save(directory: Path, source: str) -> Path:
    """Write model.pt with these methods into the version's directory, and return it."""
    torch = importlib.import_module("torch")
    # Methods belong to the class, so each module needs its own.
    module = torch.jit.script(type("Made", (torch.nn.Module,), {})())
    module.define(source)
    directory.mkdir(parents=True, exist_ok=True)
    module.save(str(directory / "model.pt"))
    return directory
