"""Targets of models' shadows: the reason why copies cannot be compared."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nereid.comparison.shadow import MODEL, URL, VERSION
from nereid.core.errors import NereidError
from nereid.core.tensors.shapes import VARIABLE, format_shape
from nereid.pb import model_config_pb2
from nereid_scheduler.placement.models.catalogue import LATEST, Ready

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from nereid.comparison.shadow import Shadow
    from nereid.pb.model_config_pb2 import ModelConfig, ModelInput, ModelOutput
    from nereid_scheduler.placement.models.catalogue import Catalogue, ServedVersion


def target_problem(
    catalogue: Catalogue, name: str, shadow: Shadow, is_elsewhere: Callable[[str], bool]
) -> str:
    """Return why the copies of a model's requests cannot be compared now, or an empty text.

    is_elsewhere: returns whether another scheduler has a model.
    """
    if shadow.kind == URL or (shadow.kind == MODEL and is_elsewhere(shadow.target)):
        return ""
    model = catalogue.only_model(name)
    if shadow.kind == VERSION:
        target = None if model is None else model.ready_version(int(shadow.target))
    else:
        target = _latest(catalogue, shadow.target)
    if target is None:
        of_model = f" of model '{name}'" if shadow.kind == VERSION else ""
        return f"{shadow.kind} '{shadow.target}'{of_model} is not ready: nothing is compared"
    served = None if model is None else model.ready_version(LATEST)
    return "" if served is None else _mismatch(served.ready_config, target.ready_config)


def _latest(catalogue: Catalogue, name: str) -> ServedVersion | None:
    try:
        found = catalogue.resolve(name, "")
    except NereidError:
        return None
    return found.served if isinstance(found, Ready) else None


def _mismatch(config: ModelConfig, target: ModelConfig) -> str:
    """Return the first difference that keeps a target from responding as the model does."""
    if (config.max_batch_size > 0) != (target.max_batch_size > 0):
        batching, other = (
            "batches" if each.max_batch_size > 0 else "does not batch" for each in (config, target)
        )
        return f"the model {batching}, and the shadow {other}"
    if config.HasField("sequence_batching") != target.HasField("sequence_batching"):
        return "only one of the model and its shadow has sequences"
    inputs = {tensor.name: tensor for tensor in target.input}
    for tensor in target.input:
        if not tensor.optional and all(tensor.name != each.name for each in config.input):
            return f"the shadow needs an input '{tensor.name}', which the model lacks"
    return _first_mismatch("input", config.input, inputs) or _first_mismatch(
        "output", config.output, {tensor.name: tensor for tensor in target.output}
    )


def _first_mismatch(
    kind: str,
    tensors: Iterable[ModelInput | ModelOutput],
    targets: dict[str, ModelInput] | dict[str, ModelOutput],
) -> str:
    for tensor in tensors:
        found = targets.get(tensor.name)
        if found is None:
            return f"the shadow has no {kind} '{tensor.name}'"
        if found.data_type != tensor.data_type or not _fits(tensor.dims, found.dims):
            return (
                f"{kind} '{tensor.name}' is {_describe(tensor)}, and {_describe(found)} in the"
                " shadow"
            )
    return ""


def _fits(dims: Iterable[int], others: Iterable[int]) -> bool:
    dims, others = tuple(dims), tuple(others)
    return len(dims) == len(others) and all(
        dim == other or VARIABLE in {dim, other} for dim, other in zip(dims, others, strict=True)
    )


def _describe(tensor: ModelInput | ModelOutput) -> str:
    name = model_config_pb2.DataType.Name(tensor.data_type).removeprefix("TYPE_")
    return f"{name} {format_shape(tuple(tensor.dims))}"
