"""Whether an ensemble and the models of its steps go together; texts as Triton's core.

Pure: complete configurations in. What needs the ensemble's alone is checked with every other rule
of configurations (nereid.model_config).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from nereid.core.errors import InvalidArgument
from nereid.pb import model_config_pb2

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from nereid.pb.model_config_pb2 import ModelConfig, ModelEnsembling, ModelInput, ModelOutput

    _Configured = ModelInput | ModelOutput

_ANY = -1


class _Tensor(NamedTuple):
    """What one model takes an ensemble's tensor to be."""

    model: str
    datatype: int
    dims: tuple[int, ...]
    # With the batch dimension, where the model has one.
    full_dims: tuple[int, ...]


def check_steps(ensemble: ModelConfig, models: Mapping[str, ModelConfig]) -> bool:
    """Check an ensemble against the configurations of its steps' models, by their names.

    Returns whether it may answer a request any number of times, as one of its models may.

    Raises:
        InvalidArgument: the first fault.
    """
    name = ensemble.name
    tensors: dict[str, _Tensor] = {}
    configured: Sequence[_Configured] = [*ensemble.input, *ensemble.output]
    for tensor in configured:
        tensors[tensor.name] = _seen_by(ensemble, tensor)
    for step in ensemble.ensemble_scheduling.step:
        model = models[step.model_name]
        if 0 < model.max_batch_size < ensemble.max_batch_size:
            raise InvalidArgument(
                f"ensemble {name} allows maximum batch size {ensemble.max_batch_size}, but it"
                f" contains model {model.name} which only allows maximum batch size to be"
                f" {model.max_batch_size}"
            )
        _check_inputs(name, step, model, tensors)
        _check_outputs(name, step, model, tensors)
    _check_forks(ensemble, models)
    return any(
        models[step.model_name].model_transaction_policy.decoupled
        for step in ensemble.ensemble_scheduling.step
    )


def _seen_by(model: ModelConfig, tensor: _Configured) -> _Tensor:
    dims = tuple(tensor.dims)
    full_dims = (_ANY, *dims) if model.max_batch_size > 0 else dims
    return _Tensor(model.name, tensor.data_type, dims, full_dims)


def _check_inputs(
    name: str, step: ModelEnsembling.Step, model: ModelConfig, tensors: dict[str, _Tensor]
) -> None:
    inputs = {tensor.name: tensor for tensor in model.input}
    for key, tensor_name in sorted(step.input_map.items()):
        if key not in inputs:
            raise InvalidArgument(
                f"in ensemble {name}, ensemble tensor {tensor_name} is mapping to non-existing"
                f" input {key} in model {model.name}"
            )
        _agree(name, tensor_name, _seen_by(model, inputs[key]), tensors)
    for tensor in model.input:
        if tensor.name not in step.input_map and not tensor.optional:
            raise InvalidArgument(
                f"in ensemble {name}, input {tensor.name} in model {model.name} is not mapped to"
                " any ensemble tensors"
            )


def _check_outputs(
    name: str, step: ModelEnsembling.Step, model: ModelConfig, tensors: dict[str, _Tensor]
) -> None:
    outputs = {tensor.name: tensor for tensor in model.output}
    for key, tensor_name in sorted(step.output_map.items()):
        if key not in outputs:
            raise InvalidArgument(
                f"in ensemble {name}, ensemble tensor {tensor_name} is mapped from non-existing"
                f" output {key} in model {model.name}"
            )
        _agree(name, tensor_name, _seen_by(model, outputs[key]), tensors)


def _agree(ensemble: str, tensor_name: str, seen: _Tensor, tensors: dict[str, _Tensor]) -> None:
    """Compare what a model takes a tensor to be with what the first one that has it does."""
    first = tensors.setdefault(tensor_name, seen)
    start = f"in ensemble {ensemble}, ensemble tensor {tensor_name}: inconsistent"
    if first.datatype != seen.datatype:
        one, other = map(model_config_pb2.DataType.Name, (first.datatype, seen.datatype))
        raise InvalidArgument(
            f"{start} data type: {one} is inferred from model {first.model} while {other} is"
            f" inferred from model {seen.model}"
        )
    # A model without batching may see the batch as a dimension, or know nothing of it.
    if not (_fit(first.dims, seen.dims) or _fit(first.full_dims, seen.full_dims)):
        raise InvalidArgument(
            f"{start} shape: {_text(first.full_dims)} is inferred from model {first.model} while"
            f" {_text(seen.full_dims)} is inferred from model {seen.model}"
        )


def _fit(one: Sequence[int], other: Sequence[int]) -> bool:
    return len(one) == len(other) and all(
        _ANY in (a, b) or a == b for a, b in zip(one, other, strict=True)
    )


def _text(dims: Iterable[int]) -> str:
    return f"[{','.join(map(str, dims))}]"


def _check_forks(ensemble: ModelConfig, models: Mapping[str, ModelConfig]) -> None:
    """What comes together must have passed the same decoupled models: else nobody could say which
    of the many answers of one belongs to which of another.
    """
    passed: dict[str, frozenset[int]] = {tensor.name: frozenset() for tensor in ensemble.input}
    steps = dict(enumerate(ensemble.ensemble_scheduling.step))
    while steps:
        ready = [
            index
            for index, step in steps.items()
            if all(tensor in passed for tensor in step.input_map.values())
        ]
        if not ready:
            # Tensors that nobody writes are another rule's affair.
            return
        for index in ready:
            step = steps.pop(index)
            forks = _common(ensemble.name, [passed[tensor] for tensor in step.input_map.values()])
            if models[step.model_name].model_transaction_policy.decoupled:
                forks |= {index}
            passed.update(dict.fromkeys(step.output_map.values(), forks))
    _common(ensemble.name, [passed[tensor.name] for tensor in ensemble.output])


def _common(ensemble: str, forks: Sequence[frozenset[int]]) -> frozenset[int]:
    if len(set(forks)) > 1:
        raise InvalidArgument(
            f"in ensemble {ensemble}, step of model '{ensemble}' receives inputs originated from"
            " different decoupled models"
        )
    return forks[0]
