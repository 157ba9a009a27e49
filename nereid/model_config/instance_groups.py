"""The instance groups that an executor hosts, completed by Triton's defaults.

Each executor is like a Triton server: KIND_AUTO and "all GPUs" refer to its own GPUs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from nereid.core.errors import InvalidArgument
from nereid.core.known_backends import ONNXRUNTIME, OPENVINO, PYTHON, TENSORFLOW
from nereid.model_config.validation.costs import check_group_costs
from nereid.model_config.validation.instance_groups import check_group, group_name
from nereid.pb import model_config_pb2

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nereid.pb.model_config_pb2 import ModelConfig, ModelInstanceGroup, ModelRateLimiter

InstanceKind = Literal["CPU", "GPU", "MODEL"]

_Kind = model_config_pb2.ModelInstanceGroup
_KIND_NAMES: Final[dict[int, InstanceKind]] = {
    _Kind.KIND_CPU: "CPU",
    _Kind.KIND_GPU: "GPU",
    _Kind.KIND_MODEL: "MODEL",
}
# Backends that have two instances on the CPU by default.
_TWO_ON_CPU: Final = (TENSORFLOW, ONNXRUNTIME)
# Backends that run on the CPU if the configuration has no instance group.
_CPU_UNLESS_ASKED: Final = (PYTHON, OPENVINO)


@dataclass(frozen=True, slots=True)
class ResourceNeed:
    """Amount of one resource that an instance needs; is_global if all devices share it."""

    name: str
    is_global: bool
    count: int


@dataclass(frozen=True, slots=True)
class RateLimit:
    """An instance's needs and its priority: priority 2 executes half as often as 1."""

    resources: tuple[ResourceNeed, ...] = ()
    priority: int = 1


UNLIMITED: Final = RateLimit()


@dataclass(frozen=True, slots=True)
class InstanceGroup:
    """`count` equal instances, or `count` on each of `gpus`. Passive ones get no requests."""

    name: str
    kind: InstanceKind
    count: int
    gpus: tuple[int, ...] = ()
    passive: bool = False
    rate_limit: RateLimit = UNLIMITED


def normalise_instance_groups(
    config: ModelConfig, *, gpu_ids: Sequence[int]
) -> list[InstanceGroup]:
    """Return the groups for an executor with these GPUs; may raise InvalidArgument."""
    return [_freeze(group) for group in _groups(config, gpu_ids)]


def with_instance_groups(config: ModelConfig, *, gpu_ids: Sequence[int]) -> ModelConfig:
    """Return a copy with the groups for these GPUs; may raise InvalidArgument."""
    placed = model_config_pb2.ModelConfig()
    placed.CopyFrom(config)
    groups = _groups(config, gpu_ids)
    del placed.instance_group[:]
    placed.instance_group.extend(groups)
    return placed


def device_of_groups(config: ModelConfig) -> Literal["cpu", "gpu", "any"]:
    """Return which executors can host the model.

    "gpu": executors with GPUs. "cpu": all, on the CPU. "any": all, on whichever devices they have.
    """
    kinds = {group.kind for group in config.instance_group}
    pinned = any(group.gpus for group in config.instance_group)
    if pinned or _Kind.KIND_GPU in kinds:
        return "gpu"
    if _Kind.KIND_AUTO in kinds or not (kinds or config.backend in _CPU_UNLESS_ASKED):
        return "any"
    return "cpu"


def _groups(config: ModelConfig, gpu_ids: Sequence[int]) -> list[ModelInstanceGroup]:
    if config.HasField("ensemble_scheduling"):
        return []
    written = list(config.instance_group)
    if not written:
        kind = _Kind.KIND_CPU if config.backend in _CPU_UNLESS_ASKED else _Kind.KIND_AUTO
        written = [model_config_pb2.ModelInstanceGroup(name=config.name, kind=kind)]
    groups = [_normalise(config, index, group, gpu_ids) for index, group in enumerate(written)]
    check_group_costs(config.name, groups)
    return groups


def _normalise(
    config: ModelConfig, index: int, written: ModelInstanceGroup, gpu_ids: Sequence[int]
) -> ModelInstanceGroup:
    group = model_config_pb2.ModelInstanceGroup()
    group.CopyFrom(written)
    group.name = group_name(config, index, written)
    if group.kind == _Kind.KIND_AUTO:
        on_gpu = bool(gpu_ids) and set(group.gpus) <= set(gpu_ids)
        group.kind = _Kind.KIND_GPU if on_gpu else _Kind.KIND_CPU
    if group.count < 1:
        two = group.kind == _Kind.KIND_CPU and config.backend in _TWO_ON_CPU
        group.count = 2 if two else 1
    if group.kind == _Kind.KIND_GPU:
        group.gpus.extend(() if group.gpus else sorted(gpu_ids))
        _check_gpus(config, group, gpu_ids)
    check_group(config, group, group.name)
    return group


def _check_gpus(config: ModelConfig, group: ModelInstanceGroup, gpu_ids: Sequence[int]) -> None:
    subject = f"instance group {group.name} of model {config.name}"
    if not group.gpus:
        raise InvalidArgument(f"{subject} has kind KIND_GPU but no GPUs are available")
    for gpu in group.gpus:
        if gpu not in gpu_ids:
            raise InvalidArgument(
                f"{subject} specifies invalid or unsupported gpu id {gpu}. GPUs with at least the "
                "minimum required CUDA compute compatibility of 6.000000 are: "
                f"{', '.join(map(str, sorted(gpu_ids)))}"
            )


def _freeze(group: ModelInstanceGroup) -> InstanceGroup:
    kind = _KIND_NAMES.get(group.kind)
    if kind is None:
        raise InvalidArgument(f"instance_group kind {group.kind} not supported")
    return InstanceGroup(
        name=group.name,
        kind=kind,
        count=group.count,
        gpus=tuple(group.gpus),
        passive=group.passive,
        rate_limit=_rate_limit(group.rate_limiter),
    )


def _rate_limit(written: ModelRateLimiter) -> RateLimit:
    needs = (
        ResourceNeed(resource.name, getattr(resource, "global"), resource.count)
        for resource in written.resources
    )
    return RateLimit(tuple(needs), written.priority or 1)
