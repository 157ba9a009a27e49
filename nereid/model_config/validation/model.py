"""Rules for a complete configuration by itself. Errors have Triton's texts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nereid.core.errors import InvalidArgument
from nereid.core.known_backends import ENSEMBLE_PLATFORM, KNOWN_BACKENDS
from nereid.core.tensors.datatypes import NAME_OF_CONFIG_NUMBER
from nereid.model_config.batching_fields import DynamicBatching, ModelParameters
from nereid.model_config.config_field import Scope, check_message, parameter_values
from nereid.model_config.defaults import read_input_defaults
from nereid.model_config.padding import read_padding
from nereid.model_config.validation.costs import validate_costs
from nereid.model_config.validation.ensemble import validate_ensemble
from nereid.model_config.validation.ensemble_paths import check_paths
from nereid.model_config.validation.instance_groups import validate_instance_groups
from nereid.model_config.validation.sequence import validate_sequence
from nereid.model_config.validation.tensors import validate_tensors

if TYPE_CHECKING:
    from nereid.pb.model_config_pb2 import ModelConfig


def validate_config(config: ModelConfig) -> None:
    """Check a complete configuration; raise InvalidArgument with the first error."""
    validate_scheduling(config)
    validate_tensors(config)
    padding = read_padding(config)
    validate_instance_groups(config)
    _check_warmup(config)
    validate_costs(config, padding)
    read_input_defaults(config)
    check_paths(config)


def validate_scheduling(config: ModelConfig, *, batch_size_open: bool = False) -> None:
    """Check what Triton checks while it reads the repository; raise InvalidArgument."""
    if not config.name:
        raise InvalidArgument("model configuration must specify 'name'")
    _check_platform(config)
    if config.max_batch_size < 0:
        raise InvalidArgument(f"'max_batch_size' must be non-negative value for {config.name}")
    if config.version_policy.WhichOneof("policy_choice") is None:
        raise InvalidArgument(f"must specify 'version policy' for {config.name}")
    if config.HasField("dynamic_batching"):
        scope = Scope(config, config.dynamic_batching, batch_size_open)
        check_message(DynamicBatching, scope)
    if config.HasField("sequence_batching"):
        validate_sequence(config, batch_size_open=batch_size_open)
    if config.HasField("ensemble_scheduling"):
        validate_ensemble(config)
    elif config.platform == ENSEMBLE_PLATFORM:
        raise InvalidArgument(
            f"ensemble scheduling must be set for ensemble {config.name} whose platform is "
            f"{ENSEMBLE_PLATFORM}"
        )
    if config.model_transaction_policy.decoupled and config.response_cache.enable:
        raise InvalidArgument(
            f"Response Cache does not currently support model {config.name} with 'decoupled' "
            "transaction policy. Please disable the response cache."
        )
    _check_metrics(config)
    parameter_values(ModelParameters, config)
    parameter_values(DynamicBatching, config)


def _check_platform(config: ModelConfig) -> None:
    if not config.backend:
        if config.platform != ENSEMBLE_PLATFORM:
            raise InvalidArgument(f"unexpected platform type '{config.platform}' for {config.name}")
        return
    if config.platform == ENSEMBLE_PLATFORM:
        raise InvalidArgument(
            f"Ensemble model '{config.name}' must have platform type '{ENSEMBLE_PLATFORM}' and "
            "empty backend type"
        )
    platforms = {
        known.platform
        for known in KNOWN_BACKENDS
        if known.backend == config.backend and known.platform
    }
    if platforms and config.platform not in platforms:
        raise InvalidArgument(
            f"unexpected 'platform' and 'backend' pair, got:{config.platform}, {config.backend}"
        )


def _check_metrics(config: ModelConfig) -> None:
    for control in config.model_metrics.metric_control:
        if not control.HasField("metric_identifier"):
            raise InvalidArgument("metric control must specify 'metric_identifier'")
        if not control.metric_identifier.family:
            raise InvalidArgument("metric identifier must specify non-empty 'family'")
        if not control.HasField("histogram_options"):
            raise InvalidArgument("metric control must specify 'histogram_options'")
        if not control.histogram_options.buckets:
            raise InvalidArgument("histogram options must specify non-empty 'buckets'")


def _check_warmup(config: ModelConfig) -> None:
    for sample in config.model_warmup:
        if not sample.batch_size:
            # Samples without a batch size are skipped.
            continue
        for name, tensor in sorted(sample.inputs.items()):
            if tensor.data_type not in NAME_OF_CONFIG_NUMBER:
                raise InvalidArgument(f"warmup setting must specify 'data_type' for input '{name}'")
            if min(tensor.dims, default=0) < 0:
                raise InvalidArgument(
                    "warmup setting expects all variable-size dimensions are specified for input "
                    f"'{name}'"
                )
            if tensor.WhichOneof("input_data_type") is None:
                raise InvalidArgument(
                    "[request id: <id_unknown>] warmup setting expects input "
                    f"'{name}' to have input_data_type set"
                )
