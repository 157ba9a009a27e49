"""Validates the samples of model_warmup, so that a load fails with the text of a request."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from nereid.core.tensors.datatypes import NAME_OF_CONFIG_NUMBER
from nereid.model_config import InputSpec
from nereid.model_config.sequence_controls import control_datatype
from nereid.pb import kserve_pb2
from nereid_scheduler.versions.validation.request_validation import Validator

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nereid.model_config import ModelConfig
    from nereid.pb import model_config_pb2


def check_samples(config: ModelConfig) -> None:
    """Check each sample that will be run; raise InvalidArgument as for a request."""
    config = replace(config, inputs=(*config.inputs, *_control_inputs(config)))
    validator = Validator(config)
    for sample in config.proto.model_warmup:
        if sample.batch_size:
            validator.check(_head(config, sample).SerializeToString())


def _control_inputs(config: ModelConfig) -> Iterator[InputSpec]:
    """Yield the control tensors of sequences, which the sample itself must contain."""
    for control_input in config.proto.sequence_batching.control_input:
        for control in control_input.control:
            yield InputSpec(control_input.name, control_datatype(control), (1,), optional=True)


def _head(
    config: ModelConfig, sample: model_config_pb2.ModelWarmup
) -> kserve_pb2.ModelInferRequest:
    batch = [1] if config.max_batch_size else []
    head = kserve_pb2.ModelInferRequest(model_name=config.name)
    inputs = {tensor.name for tensor in config.inputs}
    for name, tensor in sample.inputs.items():
        if name not in inputs:
            # Executors ignore an unknown input, as Triton does.
            continue
        datatype = NAME_OF_CONFIG_NUMBER.get(tensor.data_type, "")
        head.inputs.add(name=name, datatype=datatype, shape=[*batch, *tensor.dims])
    return head
