"""Rules for instance groups that hold on every executor. Errors have Triton's texts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from nereid.core.errors import InvalidArgument
from nereid.core.known_backends import TENSORRT_PLATFORM
from nereid.pb import model_config_pb2

if TYPE_CHECKING:
    from nereid.pb.model_config_pb2 import ModelConfig, ModelInstanceGroup

_WITHOUT_GPUS: Final = {
    model_config_pb2.ModelInstanceGroup.KIND_CPU: "KIND_CPU",
    model_config_pb2.ModelInstanceGroup.KIND_MODEL: "KIND_MODEL",
}


def validate_instance_groups(config: ModelConfig) -> None:
    """Check the groups as they are written; raise InvalidArgument."""
    for index, group in enumerate(config.instance_group):
        check_group(config, group, group_name(config, index, group))


def group_name(config: ModelConfig, index: int, group: ModelInstanceGroup) -> str:
    """Return the group's own name or, as in Triton, the model's name with the group's number."""
    return group.name or f"{config.name}_{index}"


def check_group(config: ModelConfig, group: ModelInstanceGroup, name: str) -> None:
    """Check one group, which has or will get this name; raise InvalidArgument."""
    subject = f"instance group {name} of model {config.name}"
    if group.gpus and group.kind in _WITHOUT_GPUS:
        raise InvalidArgument(
            f"{subject} has kind {_WITHOUT_GPUS[group.kind]} but specifies one or more GPUs"
        )
    if group.profile:
        _check_profile(config, group, f"{subject} and platform {config.platform}".rstrip())


def _check_profile(config: ModelConfig, group: ModelInstanceGroup, subject: str) -> None:
    if config.platform != TENSORRT_PLATFORM:
        raise InvalidArgument(
            f"{subject} specifies profile field which is only supported for TensorRT models"
        )
    for profile in group.profile:
        if not profile:
            raise InvalidArgument("profile name must not be empty")
        if not (profile.isascii() and profile.isdigit()):
            raise InvalidArgument(
                f"{subject} specifies invalid profile {profile}. The field should contain the "
                "string representation of a non-negative integer."
            )
