"""Descriptions of model files, as executors send them to the scheduler."""

from __future__ import annotations

from nereid.backends import ModelDescription, TensorDescription
from nereid.model_config import read_description, write_description
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
    assert read_description(described) == ModelDescription(
        (
            TensorDescription("x", "FP32", (-1, 4)),
            TensorDescription("w", "INVALID", (), optional=True),
        ),
        (TensorDescription("y", "INVALID", None),),
    )


def test_a_description_is_read_as_it_was_written() -> None:
    description = ModelDescription(
        (TensorDescription("x", "BYTES", (-1, 4)), TensorDescription("w", "BF16", None, True)),
        (TensorDescription("y", "FP64", ()),),
        model_config_pb2.ModelConfig(name="m", max_batch_size=4),
    )
    described = nereid_pb2.Described()
    write_description(description, described)
    assert read_description(described) == description
