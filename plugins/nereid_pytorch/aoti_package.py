"""Packages that AOTInductor compiled ahead of time (model.pt2), called as modules are."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import torch
from torch import _inductor as inductor
from torch.utils import _pytree as pytree

from nereid.core.errors import InvalidArgument, Unimplemented
from nereid_pytorch.tensor_names import leaf_names

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


class AotiPackage:
    """A loaded package. Several threads may call it."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader
        (args, kwargs), results = map(_structure, loader.get_call_spec())
        # In the order in which the package takes and returns the tensors.
        self.arguments = [*leaf_names("ARGS", args), *leaf_names("KWARGS", kwargs)]
        self.results = leaf_names("RESULT", results)

    def __call__(self, **tensors: torch.Tensor) -> Sequence[torch.Tensor]:
        """Return the results. tensors: one of each argument."""
        results: Sequence[torch.Tensor] = self._loader.run(
            [tensors[name] for name in self.arguments]
        )
        return results


def load_package(model: str, path: Path, device: torch.device | None) -> AotiPackage:
    """Load a package for a device; raise InvalidArgument if it was compiled for another kind."""
    if not hasattr(inductor, "aoti_load_package"):
        raise Unimplemented(
            f"unable to load model '{model}', platform 'torch_aoti' needs torch 2.6 or newer, the "
            f"executor has {torch.__version__}: upgrade it, or save the model as TorchScript"
        )
    # Compiled code has no other check of shapes and datatypes: it would read beyond a tensor.
    os.environ.setdefault("AOTI_RUNTIME_CHECK_INPUTS", "1")
    place = {"device_index": device.index} if device is not None and device.type == "cuda" else {}
    loader = inductor.aoti_load_package(str(path), **place).loader
    compiled_for = loader.get_metadata().get("AOTI_DEVICE_KEY", "")
    if device is not None and compiled_for not in ("", device.type):
        raise InvalidArgument(
            f"unable to load model '{model}', its package is compiled for {compiled_for}, the "
            f"instance is on {device.type}: set the kind of instance_group, or compile it anew"
        )
    return AotiPackage(loader)


def _structure(spec: str) -> Any:
    tree = pytree.treespec_loads(spec)
    return pytree.tree_unflatten(list(range(tree.num_leaves)), tree)
