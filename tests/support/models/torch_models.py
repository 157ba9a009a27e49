"""Small TorchScript models, made in the test that needs them."""

from __future__ import annotations

import importlib
from pathlib import Path


def save(directory: Path, source: str) -> Path:
    """Write model.pt with these methods into the version's directory, which is given back."""
    torch = importlib.import_module("torch")
    # Methods are kept by the class, so that each module needs one of its own.
    module = torch.jit.script(type("Made", (torch.nn.Module,), {})())
    module.define(source)
    directory.mkdir(parents=True, exist_ok=True)
    module.save(str(directory / "model.pt"))
    return directory
