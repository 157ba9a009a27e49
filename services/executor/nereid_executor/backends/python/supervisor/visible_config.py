"""Makes the configuration that a Python model reads: all defaults and instance groups filled in."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nereid.core.errors import InvalidArgument
from nereid.model_config import complete_config, with_instance_groups
from nereid.pb import model_config_pb2

if TYPE_CHECKING:
    from nereid.backends import InstanceSpec

_KIND_MODEL = model_config_pb2.ModelInstanceGroup.KIND_MODEL


def visible_config(
    config: model_config_pb2.ModelConfig, gpu: int | None = None
) -> model_config_pb2.ModelConfig:
    """Return the configuration for the model to read. gpu: number of the instance's GPU."""
    # The executor's other GPUs are not known here, so use those that the groups name.
    gpu_ids = {gpu_id for group in config.instance_group for gpu_id in group.gpus}
    if gpu is not None:
        gpu_ids.add(gpu)
    visible = config
    try:
        visible = complete_config(config, model_name=config.name, description=None)
        visible.default_model_filename = config.default_model_filename or "model.py"
        visible = with_instance_groups(visible, gpu_ids=sorted(gpu_ids))
    except InvalidArgument:
        # The load reports the error.
        pass
    return visible


def instance_kind(spec: InstanceSpec) -> str:
    """Return the kind of the instance's group as Triton names it: CPU, GPU or MODEL."""
    group_name = spec.name.rpartition("_")[0]
    groups = visible_config(spec.config, spec.gpu).instance_group
    if any(group.name == group_name and group.kind == _KIND_MODEL for group in groups):
        return "MODEL"
    return "CPU" if spec.gpu is None else "GPU"
