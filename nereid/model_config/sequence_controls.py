"""Control tensors: the inputs with which the sequence batcher controls a stateful model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nereid.core.tensors.datatypes import NAME_OF_CONFIG_NUMBER
from nereid.pb import model_config_pb2

if TYPE_CHECKING:
    from nereid.pb.model_config_pb2 import ModelSequenceBatching

_CORRELATION_ID = model_config_pb2.ModelSequenceBatching.Control.CONTROL_SEQUENCE_CORRID


def control_datatype(control: ModelSequenceBatching.Control) -> str:
    """Return a control tensor's datatype: the configured one, or that of its values."""
    if control.kind == _CORRELATION_ID:
        return NAME_OF_CONFIG_NUMBER[control.data_type]
    if control.int32_false_true:
        return "INT32"
    return "FP32" if control.fp32_false_true else "BOOL"
