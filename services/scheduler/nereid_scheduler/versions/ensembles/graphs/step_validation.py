"""Checks an ensemble against the models of its steps, with the texts of Triton's core."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from nereid.core.errors import InvalidArgument
from nereid.core.tensors.datatypes import BOOL, BYTES, NAME_OF_CONFIG_NUMBER
from nereid.core.tensors.scalars import literal_tensor
from nereid.core.tensors.shapes import format_shape
from nereid.model_config.conditions import read_conditions
from nereid.model_config.defaults import DEFAULT, read_defaults
from nereid.pb import model_config_pb2
from nereid_scheduler.core.models.dependencies import step_model

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nereid.pb.model_config_pb2 import ModelConfig, ModelEnsembling, ModelInput, ModelOutput

    _Configured = ModelInput | ModelOutput

_ANY = -1


class _Tensor(NamedTuple):
    model: str
    datatype: int
    dims: tuple[int, ...]
    # Including the batch dimension, if the model has one.
    full_dims: tuple[int, ...]


def check_steps(ensemble: ModelConfig, models: Mapping[str, ModelConfig]) -> bool:
    """Return whether a step's model is decoupled; raise InvalidArgument at the first mismatch."""
    name = ensemble.name
    tensors: dict[str, _Tensor] = {}
    configured: Sequence[_Configured] = [*ensemble.input, *ensemble.output]
    for tensor in configured:
        # Steps get tensors after the ensemble's reshape, and reshape them as for any client.
        inner = tensor.reshape.shape if tensor.HasField("reshape") else tensor.dims
        tensors[tensor.name] = _declared_by(ensemble, tensor, inner)
    for step in ensemble.ensemble_scheduling.step:
        model = models[step_model(step)]
        if 0 < model.max_batch_size < ensemble.max_batch_size:
            raise InvalidArgument(
                f"ensemble {name} allows maximum batch size {ensemble.max_batch_size}, but it"
                f" contains model {model.name} which only allows maximum batch size to be"
                f" {model.max_batch_size}"
            )
        _check_inputs(name, step, model, tensors)
        _check_outputs(name, step, model, tensors)
    _check_conditions(ensemble, models, tensors)
    _check_forks(ensemble, models)
    return any(
        models[step_model(step)].model_transaction_policy.decoupled
        for step in ensemble.ensemble_scheduling.step
    )


def _declared_by(model: ModelConfig, tensor: _Configured, inner: Sequence[int]) -> _Tensor:
    dims = tuple(inner)
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
        _check_consistent(
            name, tensor_name, _declared_by(model, inputs[key], inputs[key].dims), tensors
        )
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
        _check_consistent(
            name, tensor_name, _declared_by(model, outputs[key], outputs[key].dims), tensors
        )


def _check_consistent(
    ensemble: str, tensor_name: str, seen: _Tensor, tensors: dict[str, _Tensor]
) -> None:
    """Compare a model's declaration of a tensor with the first model's declaration."""
    first = tensors.setdefault(tensor_name, seen)
    start = f"in ensemble {ensemble}, ensemble tensor {tensor_name}: inconsistent"
    if first.datatype != seen.datatype:
        one, other = map(model_config_pb2.DataType.Name, (first.datatype, seen.datatype))
        raise InvalidArgument(
            f"{start} data type: {one} is inferred from model {first.model} while {other} is"
            f" inferred from model {seen.model}"
        )
    # A model without batching may declare the batch dimension as its own, or not at all.
    if not (_compatible(first.dims, seen.dims) or _compatible(first.full_dims, seen.full_dims)):
        raise InvalidArgument(
            f"{start} shape: {format_shape(first.full_dims)} is inferred from model {first.model}"
            f" while {format_shape(seen.full_dims)} is inferred from model {seen.model}"
        )


class DefaultTensor(NamedTuple):
    """The default of a tensor that no step has made. raw: of one row if it is batched."""

    datatype: str
    shape: tuple[int, ...]
    raw: bytes
    batched: bool


def default_tensor(
    value: Any, tensor: str, ensemble: ModelConfig, model: ModelConfig, output: str
) -> DefaultTensor:
    """Return a tensor with this value, as the ensemble declares it, or else a step's model.

    output: the model's name for the tensor. Raises InvalidArgument if the value does not fit.
    """
    owner, name = (ensemble, tensor)
    if all(each.name != tensor for each in ensemble.output):
        owner, name = (model, output)
    spec = next(each for each in owner.output if each.name == name)
    inner = owner is ensemble and spec.HasField("reshape")
    dims = spec.reshape.shape if inner else spec.dims
    try:
        datatype = NAME_OF_CONFIG_NUMBER[spec.data_type]
        shape, raw = literal_tensor(value, datatype, dims, max(1, owner.max_batch_size))
    except InvalidArgument as error:
        raise InvalidArgument(
            f"parameter '{DEFAULT}{tensor}' of ensemble '{ensemble.name}': {error.message}"
        ) from None
    return DefaultTensor(datatype, shape, raw, batched=owner.max_batch_size > 0)


def _check_conditions(
    ensemble: ModelConfig, models: Mapping[str, ModelConfig], tensors: Mapping[str, _Tensor]
) -> None:
    """Check datatypes and dims of conditions' tensors, and that defaults fit theirs."""
    for condition in read_conditions(ensemble).values():
        declared = tensors[condition.tensor]
        datatype = NAME_OF_CONFIG_NUMBER[declared.datatype]
        if datatype == BYTES or (datatype == BOOL) is not condition.of_bool:
            wanted = "a BOOL tensor" if condition.of_bool else "numbers"
            raise InvalidArgument(
                f"in ensemble {ensemble.name}, condition '{condition}' needs {wanted}, but tensor"
                f" '{condition.tensor}' is {datatype}"
            )
        if any(size > 1 for size in declared.full_dims[ensemble.max_batch_size > 0 :]):
            raise InvalidArgument(
                f"in ensemble {ensemble.name}, condition '{condition}' needs one element in each"
                f" row, but tensor '{condition.tensor}' has the shape"
                f" {format_shape(declared.full_dims)}"
            )
    defaults = read_defaults(ensemble)
    for step in ensemble.ensemble_scheduling.step:
        for output, tensor in sorted(step.output_map.items()):
            if tensor in defaults:
                default_tensor(defaults[tensor], tensor, ensemble, models[step_model(step)], output)


def _compatible(one: Sequence[int], other: Sequence[int]) -> bool:
    return len(one) == len(other) and all(
        _ANY in (a, b) or a == b for a, b in zip(one, other, strict=True)
    )


def _check_forks(ensemble: ModelConfig, models: Mapping[str, ModelConfig]) -> None:
    """Check that all inputs of a step come through the same decoupled models.

    Otherwise it is undefined which of their responses belong together.
    """
    passed: dict[str, frozenset[int]] = {tensor.name: frozenset() for tensor in ensemble.input}
    steps = dict(enumerate(ensemble.ensemble_scheduling.step))
    conditions = read_conditions(ensemble)
    needed = {index: list(step.input_map.values()) for index, step in steps.items()}
    for index, condition in conditions.items():
        needed[index].append(condition.tensor)
    while steps:
        ready = [index for index in steps if all(tensor in passed for tensor in needed[index])]
        if not ready:
            # nereid.model_config refuses a tensor that no step produces.
            return
        for index in ready:
            step = steps.pop(index)
            forks = _common_forks(ensemble.name, [passed[tensor] for tensor in needed[index]])
            if models[step_model(step)].model_transaction_policy.decoupled:
                forks |= {index}
            passed.update(dict.fromkeys(step.output_map.values(), forks))
    _common_forks(ensemble.name, [passed[tensor.name] for tensor in ensemble.output])


def _common_forks(ensemble: str, forks: Sequence[frozenset[int]]) -> frozenset[int]:
    if len(set(forks)) > 1:
        raise InvalidArgument(
            f"in ensemble {ensemble}, step of model '{ensemble}' receives inputs originated from"
            " different decoupled models"
        )
    return forks[0]
