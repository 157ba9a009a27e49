"""What an executor tells of a model file."""

from __future__ import annotations

from nereid.model_config import ModelDescription, TensorDescription
from nereid.pb import model_config_pb2, nereid_pb2


def test_a_description_is_read_from_an_executors_response() -> None:
    described = nereid_pb2.Described(
        inputs=[
            nereid_pb2.TensorDescription(
                name="x", data_type=model_config_pb2.TYPE_FP32, dims=[-1, 4]
            ),
            nereid_pb2.TensorDescription(name="w", optional=True),
        ],
        outputs=[nereid_pb2.TensorDescription(name="y", unknown_rank=True)],
    )
    assert ModelDescription.from_proto(described) == ModelDescription(
        (
            TensorDescription("x", model_config_pb2.TYPE_FP32, (-1, 4)),
            TensorDescription("w", model_config_pb2.TYPE_INVALID, (), optional=True),
        ),
        (TensorDescription("y", model_config_pb2.TYPE_INVALID, None),),
    )
