"""model_warmup against the inputs that a model says it has: what would be refused as a request is
refused when the model is loaded, with the same words. What samples hold is the executors' to read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nereid.core.datatypes import NAME_OF_CONFIG_NUMBER
from nereid.pb import kserve_pb2
from nereid.services.scheduler.requests.validation import Validator

if TYPE_CHECKING:
    from nereid.model_config import ModelConfig
    from nereid.pb import model_config_pb2


def check_samples(config: ModelConfig) -> None:
    """Each sample that is to be run.

    Raises:
        InvalidArgument: as a request it would be refused.
    """
    for sample in config.proto.model_warmup:
        if sample.batch_size:
            Validator(config).check(_head(config, sample).SerializeToString())


def _head(
    config: ModelConfig, sample: model_config_pb2.ModelWarmup
) -> kserve_pb2.ModelInferRequest:
    batch = [1] if config.max_batch_size else []
    head = kserve_pb2.ModelInferRequest(model_name=config.name)
    for name, tensor in sample.inputs.items():
        datatype = NAME_OF_CONFIG_NUMBER.get(tensor.data_type, "")
        head.inputs.add(name=name, datatype=datatype, shape=[*batch, *tensor.dims])
    return head
