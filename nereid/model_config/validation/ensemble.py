"""Rules for an ensemble's steps that need no other configuration. Errors have Triton's texts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from nereid.core.errors import InvalidArgument
from nereid.core.known_backends import ENSEMBLE_PLATFORM
from nereid.model_config.conditions import read_conditions

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nereid.model_config.conditions import Condition
    from nereid.pb.model_config_pb2 import ModelConfig, ModelEnsembling


@dataclass(slots=True, eq=False)
class _Tensor:
    """A tensor of an ensemble. ready: the client or a step that can run provides it.

    sources: inputs of the steps that write it. users: outputs of the steps that read it.
    conditional: the steps that write it have conditions; check_paths() compares these.
    """

    name: str
    is_output: bool = False
    conditional: bool = False
    ready: bool = False
    sources: list[_Tensor] = field(default_factory=list)
    users: list[_Tensor] = field(default_factory=list)


_Graph = dict[str, _Tensor]


def validate_ensemble(config: ModelConfig) -> None:
    """Check a configuration that has ensemble_scheduling; raise InvalidArgument."""
    name = config.name
    if config.platform != ENSEMBLE_PLATFORM:
        raise InvalidArgument(
            f"ensemble scheduling cannot be set for model '{name}' whose platform is not "
            f"{ENSEMBLE_PLATFORM}"
        )
    if config.instance_group:
        raise InvalidArgument(f"instance group should not be specified for ensemble '{name}'")
    if config.HasField("optimization"):
        raise InvalidArgument(f"optimization should not be specified for ensemble '{name}'")
    if config.model_warmup:
        raise InvalidArgument(f"model_warmup can not be specified for ensemble '{name}'")
    if not config.ensemble_scheduling.step:
        raise InvalidArgument(f"must specify 'step' for ensemble '{name}'")
    graph: _Graph = {}
    conditions = read_conditions(config)
    for index, step in enumerate(config.ensemble_scheduling.step):
        _check_step(name, index, step)
        _link_tensors(name, index, step, conditions.get(index), graph)
    _propagate_readiness(config, graph)
    _check_outputs(config, graph)
    _check_used(config, graph)


def _check_step(name: str, index: int, step: ModelEnsembling.Step) -> None:
    for key in ("model_name", "input_map", "output_map"):
        if not getattr(step, key):
            raise InvalidArgument(f"must specify '{key}' in step {index} of ensemble '{name}'")


def _link_tensors(
    name: str, index: int, step: ModelEnsembling.Step, condition: Condition | None, graph: _Graph
) -> None:
    outputs: list[_Tensor] = []
    for tensor_name in _tensor_names(step.output_map):
        tensor = graph.setdefault(tensor_name, _Tensor(tensor_name))
        is_branch = tensor.conditional and condition is not None and tensor not in outputs
        if tensor.is_output and not is_branch:
            raise InvalidArgument(
                f"ensemble tensor '{tensor_name}' can appear in an output map only once for "
                f"ensemble '{name}' step {index}"
            )
        tensor.is_output = True
        tensor.conditional = condition is not None
        outputs.append(tensor)
    sources = _tensor_names(step.input_map)
    if condition is not None:
        sources.append(condition.tensor)
    for tensor_name in sources:
        source = graph.setdefault(tensor_name, _Tensor(tensor_name))
        for tensor in outputs:
            tensor.sources.append(source)
            source.users.append(tensor)


def _tensor_names(mapping: Mapping[str, str]) -> list[str]:
    """Return a map's values in the order of its keys, so that errors are deterministic."""
    return [value for _, value in sorted(mapping.items())]


def _propagate_readiness(config: ModelConfig, graph: _Graph) -> None:
    ready = []
    for tensor_config in config.input:
        tensor = graph.get(tensor_config.name)
        if tensor is None:
            raise InvalidArgument(
                f"ensemble input '{tensor_config.name}' for ensemble {config.name} is not used"
            )
        tensor.ready = True
        ready.append(tensor)
    while ready:
        for user in ready.pop().users:
            if not user.ready and all(source.ready for source in user.sources):
                user.ready = True
                ready.append(user)


def _check_outputs(config: ModelConfig, graph: _Graph) -> None:
    for tensor_config in config.output:
        tensor = graph.get(tensor_config.name)
        if tensor is None:
            raise InvalidArgument(
                f"ensemble output '{tensor_config.name}' for ensemble {config.name} is not used"
            )
        if not tensor.ready:
            text = f"output '{tensor.name}' for ensemble '{config.name}' is not written"
            cause = _unconnected(tensor)
            if cause is not tensor:
                text += f": at least one of its depending tensors, '{cause.name}', is not connected"
            raise InvalidArgument(text)


def _unconnected(tensor: _Tensor) -> _Tensor:
    """Return the tensor furthest upstream that keeps this tensor from being written."""
    seen: set[str] = set()
    while True:
        waiting = (s for s in tensor.sources if not s.ready and s.name not in seen)
        source = next(waiting, None)
        if source is None:
            return tensor
        seen.add(source.name)
        tensor = source


def _check_used(config: ModelConfig, graph: _Graph) -> None:
    outputs = {tensor.name for tensor in config.output}
    for name, tensor in sorted(graph.items()):
        if name not in outputs and not (tensor.ready and tensor.users):
            raise InvalidArgument(f"ensemble tensor '{name}' is unused in ensemble '{config.name}'")
