"""Between the shapes that clients see and those of the model."""

from __future__ import annotations

import pytest
from google.protobuf import text_format

from nereid.model_config.reshapes import Reshape, input_reshapes, output_reshapes
from nereid.pb import kserve_pb2, model_config_pb2
from nereid.pb import nereid_pb2 as pb
from nereid_executor.batch.batch_reader import request_of
from nereid_executor.batch.requests import RequestReader

CONFIG = """
max_batch_size: 4
input { name: "X" data_type: TYPE_FP32 dims: [2, 4] reshape { shape: [8] } }
input { name: "PLAIN" data_type: TYPE_FP32 dims: [8] }
output { name: "Y" data_type: TYPE_FP32 dims: [1] reshape { } }
output { name: "Z" data_type: TYPE_FP32 dims: [1] }
"""


@pytest.mark.parametrize(
    ("source", "target", "batch_dims", "shape", "expected"),
    [
        ((2, 4), (8,), 0, (2, 4), (8,)),
        ((2, 4), (8,), 1, (3, 2, 4), (3, 8)),
        ((1,), (), 1, (3, 1), (3,)),
        ((), (1,), 1, (3,), (3, 1)),
        ((-1, 4), (-1, 1, 4), 0, (2, 4), (2, 1, 4)),
        ((-1, -1, 1), (-1, 1, -1), 0, (2, 3, 1), (2, 1, 3)),
        ((8,), (2, 4), 0, (4, 2), (2, 4)),
        ((8,), (2, 4), 0, (7,), (7,)),
        ((8,), (2, 4), 1, (2, 2, 4), (2, 2, 4)),
        ((-1, 4), (-1, 1, 4), 0, (8,), (8,)),
        ((8,), (2, 4), 1, (), ()),
    ],
)
def test_shapes(
    source: tuple[int, ...],
    target: tuple[int, ...],
    batch_dims: int,
    shape: tuple[int, ...],
    expected: tuple[int, ...],
) -> None:
    assert Reshape(source, target, batch_dims).apply(shape) == expected


def test_the_reshapes_of_a_configuration() -> None:
    config = text_format.Parse(CONFIG, model_config_pb2.ModelConfig())
    assert input_reshapes(config) == {"X": Reshape((2, 4), (8,), 1)}
    assert output_reshapes(config) == {"Y": Reshape((), (1,), 1)}
    config.max_batch_size = 0
    assert input_reshapes(config) == {"X": Reshape((2, 4), (8,), 0)}
    assert output_reshapes(config) == {"Y": Reshape((), (1,), 0)}


def test_models_that_take_requests_one_by_one_get_their_own_shapes() -> None:
    config = text_format.Parse(CONFIG, model_config_pb2.ModelConfig())
    head = kserve_pb2.ModelInferRequest(model_name="m")
    head.inputs.add(name="X", datatype="FP32", shape=[3, 2, 4])
    head.inputs.add(name="PLAIN", datatype="FP32", shape=[3, 8])
    member = pb.BatchMember(head=head.SerializeToString())
    for _ in range(2):
        member.payloads.add(inline=bytes(96))
    request = RequestReader(("Y",), input_reshapes(config)).read_request(request_of(member), None)
    assert request.spec.inputs == (("X", "FP32", (3, 8)), ("PLAIN", "FP32", (3, 8)))
