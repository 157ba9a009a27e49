"""Configurations as Python models see them: with every default, and instance groups in full.

The executor goes by the configuration as it came; this one is for models to read.
"""

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
    """The configuration for the model; gpu: the one of its instance."""
    # Of the executor's GPUs, those that are known here.
    gpus = {each for group in config.instance_group for each in group.gpus}
    if gpu is not None:
        gpus.add(gpu)
    visible = config
    try:
        visible = complete_config(config, model_name=config.name, description=None)
        visible.default_model_filename = config.default_model_filename or "model.py"
        visible = with_instance_groups(visible, gpu_ids=sorted(gpus))
    except InvalidArgument:
        # Loading it reports the error.
        pass
    return visible


def instance_kind(spec: InstanceSpec) -> str:
    """The kind of the instance's group, in Triton's words."""
    group_name = spec.name.rpartition("_")[0]
    groups = visible_config(spec.config, spec.gpu).instance_group
    if any(group.name == group_name and group.kind == _KIND_MODEL for group in groups):
        return "MODEL"
    return "CPU" if spec.gpu is None else "GPU"
