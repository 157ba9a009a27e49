"""Heads of ensembles' requests and responses, and the shapes in them."""

import pytest

from nereid.core.tensors.classification import Classification, request_classification
from nereid.model_config import complete_config, freeze_config, parse_config
from nereid.pb import kserve_pb2
from nereid_scheduler.versions.ensembles.graphs.sequence_place import SequencePlace
from nereid_scheduler.versions.ensembles.step_tensors import (
    EnsembleHeads,
    Tensor,
    fit_batch_dimension,
)
from tests.support.scheduler.ensemble_configs import ensemble_config


@pytest.mark.parametrize(
    ("shape", "dims", "wanted", "made"),
    [
        # With a batch dimension for a model that has one, and without for one that has none.
        ((2,), (2,), True, (1, 2)),
        ((1, 2), (2,), False, (2,)),
        ((7,), (-1,), True, (1, 7)),
        ((1, 7), (-1,), False, (7,)),
        # It has one already, or no batch dimension.
        ((4, 2), (2,), True, (4, 2)),
        ((2,), (2,), False, (2,)),
        # What fits neither way is left for the model to refuse.
        ((3,), (2,), True, (3,)),
        ((4, 2), (2,), False, (4, 2)),
        ((1, 3), (2,), False, (3,)),
        ((1, 1, 2), (-1,), False, (1, 2)),
        # It has the rank without one.
        ((1,), (-1,), False, (1,)),
        ((1, 4), (-1, 4), False, (1, 4)),
        ((2, 4), (-1, 4), False, (2, 4)),
        ((), (2,), False, ()),
    ],
)
def test_a_shape_gains_or_loses_a_batch_dimension(
    shape: tuple[int, ...], dims: tuple[int, ...], wanted: bool, made: tuple[int, ...]
) -> None:
    assert fit_batch_dimension(shape, dims, given=not wanted, wanted=wanted) == made
    # Between two models of the same kind nothing is changed, whatever the shape looks like.
    for same in (False, True):
        assert fit_batch_dimension(shape, dims, given=same, wanted=same) == shape


def heads(more: str = "") -> EnsembleHeads:
    steps = [("m", {"I": "x", "J": "w"}, {"O": "y"})]
    text = ensemble_config(["x", "w FP32 2 optional"], ["y"], steps, more)
    written = parse_config(f'name: "e" {text}', model_name="e")
    config = freeze_config(complete_config(written, model_name="e", description=None))
    return EnsembleHeads(config, 3, {})


def request(size: int = 2) -> bytes:
    message = kserve_pb2.ModelInferRequest(model_name="e")
    message.inputs.add(name="x", datatype="FP32", shape=[size])
    return message.SerializeToString()


def test_an_omitted_optional_input_is_none() -> None:
    head = heads().parse_request(request())
    assert head.input_tensors([b"abc"]) == {"x": Tensor("FP32", (2,), b"abc"), "w": None}


def test_requests_for_the_same_outputs_share_a_plan_however_many_there_are() -> None:
    them = heads()
    plans = {id(them.parse_request(request(size)).plan) for size in range(3000)}
    assert len(plans) == 1


def test_a_response_has_a_batch_dimension_if_the_ensemble_has() -> None:
    them = heads("max_batch_size: 4")
    head = them.parse_request(request())
    # By the configurations: a batching model has given one by what it calls a shape.
    batching = them.write_response(
        head, [Tensor("FP32", (2,), b"", batched=True)], SequencePlace(7)
    )
    message = kserve_pb2.ModelInferResponse.FromString(batching)
    assert [*message.outputs[0].shape] == [2]
    written = them.write_response(head, [Tensor("FP32", (2,), b"")], SequencePlace(7))
    assert them.write_response(head, [Tensor("FP32", (2,), b"other")], SequencePlace(7)) is written
    message = kserve_pb2.ModelInferResponse.FromString(written)
    assert (message.model_name, message.model_version) == ("e", "3")
    assert [*message.outputs[0].shape] == [1, 2]
    assert message.parameters["sequence_id"].int64_param == 7


def test_an_output_that_no_step_gave_is_left_out_with_its_classes() -> None:
    them = heads()
    message = kserve_pb2.ModelInferRequest.FromString(request())
    request_classification(message.outputs.add(name="y"), Classification(1, None))
    head = them.parse_request(message.SerializeToString())
    tensors = head.response_tensors([None])
    assert [*tensors] == [None]
    written = kserve_pb2.ModelInferResponse.FromString(
        them.write_response(head, tensors, SequencePlace(0))
    )
    assert not written.outputs
    assert not written.parameters


def test_an_ensemble_reshapes_what_it_passes_on_and_what_it_responds() -> None:
    reshaped = "dims: [ 1, 2 ] reshape { shape: [ 2 ] }"
    steps = (
        'step { model_name: "m" input_map { key: "I" value: "x" }'
        ' output_map { key: "O" value: "y" } }'
    )
    text = (
        f'name: "e" platform: "ensemble" input {{ name: "x" data_type: TYPE_FP32 {reshaped} }}'
        f' output {{ name: "y" data_type: TYPE_FP32 {reshaped} }} ensemble_scheduling {{ {steps} }}'
    )
    written = parse_config(text, model_name="e")
    config = freeze_config(complete_config(written, model_name="e", description=None))
    them = EnsembleHeads(config, 1, {})
    message = kserve_pb2.ModelInferRequest(model_name="e")
    message.inputs.add(name="x", datatype="FP32", shape=[1, 2])
    parsed = them.parse_request(message.SerializeToString())
    assert parsed.input_tensors([bytes(8)])["x"] == Tensor("FP32", (2,), bytes(8))
    head = them.write_response(parsed, [Tensor("FP32", (2,), bytes(8))], SequencePlace(0))
    response = kserve_pb2.ModelInferResponse.FromString(head)
    assert list(response.outputs[0].shape) == [1, 2]
