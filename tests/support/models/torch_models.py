"""Small PyTorch models, for tests."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any


def save(directory: Path, source: str) -> Path:
    """Write model.pt with these methods into the version's directory, and return it."""
    torch = importlib.import_module("torch")
    # Methods belong to the class, so each module needs its own.
    module = torch.jit.script(type("Made", (torch.nn.Module,), {})())
    module.define(source)
    directory.mkdir(parents=True, exist_ok=True)
    module.save(str(directory / "model.pt"))
    return directory


def save_package(directory: Path) -> Path:
    """Compile a package whose forward(a, more, *, scale) has the results difference and sums."""
    torch = importlib.import_module("torch")

    def forward(_self: Any, a: Any, more: dict[str, Any], *, scale: Any) -> Any:
        return {"difference": a - more["b"] * scale, "sums": (a + more["b"], a + scale)}

    module = type("Made", (torch.nn.Module,), {"forward": forward})()
    tensors = [torch.zeros(2, 1) for _ in range(3)]
    batch = {0: torch.export.Dim("batch", max=8)}
    exported = torch.export.export(
        module,
        (tensors[0], {"b": tensors[1]}),
        {"scale": tensors[2]},
        dynamic_shapes={"a": batch, "more": {"b": batch}, "scale": batch},
    )
    directory.mkdir(parents=True, exist_ok=True)
    torch._inductor.aoti_compile_and_package(exported, package_path=str(directory / "model.pt2"))
    return directory
