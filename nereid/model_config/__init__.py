"""Model configurations: parsed, completed, validated, frozen, and converted for clients."""

# layout: covered, pure

from nereid.core.known_backends import model_file_backend
from nereid.model_config.backend_choice import fill_backend
from nereid.model_config.batching_fields import DynamicBatching, QueuePolicy, SequenceBatching
from nereid.model_config.completion import CompletionSettings, complete_config, is_incomplete
from nereid.model_config.description import read_description, write_description
from nereid.model_config.frozen import InputSpec, ModelConfig, OutputSpec, freeze_config
from nereid.model_config.instance_groups import (
    UNLIMITED,
    InstanceGroup,
    RateLimit,
    ResourceNeed,
    device_of_groups,
    normalise_instance_groups,
    with_instance_groups,
)
from nereid.model_config.render import config_json, metadata
from nereid.model_config.text_format import parse_config
from nereid.model_config.validation.costs import (
    check_session_costs,
    check_step_requests,
    check_version_costs,
)
from nereid.model_config.validation.model import validate_config
from nereid.model_config.validation.model_file import check_model_file
from nereid.model_config.versions import select_versions

__all__ = [
    "UNLIMITED",
    "CompletionSettings",
    "DynamicBatching",
    "InputSpec",
    "InstanceGroup",
    "ModelConfig",
    "OutputSpec",
    "QueuePolicy",
    "RateLimit",
    "ResourceNeed",
    "SequenceBatching",
    "check_model_file",
    "check_session_costs",
    "check_step_requests",
    "check_version_costs",
    "complete_config",
    "config_json",
    "device_of_groups",
    "fill_backend",
    "freeze_config",
    "is_incomplete",
    "metadata",
    "model_file_backend",
    "normalise_instance_groups",
    "parse_config",
    "read_description",
    "select_versions",
    "validate_config",
    "with_instance_groups",
    "write_description",
]
