"""Ensembles checked against the models of their steps."""

import pytest

from nereid.core.errors import InvalidArgument
from nereid.model_config import parse_config
from nereid.pb.model_config_pb2 import ModelConfig
from nereid_scheduler.versions.ensembles.graphs.step_validation import check_steps
from tests.support.scheduler.ensemble_configs import Step, ensemble_config

ADD = """max_batch_size: 4
input { name: "A" data_type: TYPE_FP32 dims: [ 2 ] }
output { name: "B" data_type: TYPE_FP32 dims: [ 2 ] }"""
MODELS = {
    "add": ADD,
    "flat": ADD.replace("max_batch_size: 4", ""),
    "nobatch": ADD.replace("max_batch_size: 4", "").replace("[ 2 ]", "[ -1, 2 ]"),
    "inner": ADD.replace("dims: [ 2 ]", "dims: [ 2 ] reshape { shape: [ 2, 1 ] }"),
    "any": ADD.replace("max_batch_size: 4", "").replace("[ 2 ]", "[ -1 ]"),
    "many": ADD.replace("max_batch_size: 4", "model_transaction_policy { decoupled: true }"),
    "text": ADD + ' output { name: "TEXT" data_type: TYPE_STRING dims: [ 2 ] }',
    "two": ADD + ' input { name: "C" data_type: TYPE_FP32 dims: [ 2 ] }',
    "optional": ADD + ' input { name: "C" data_type: TYPE_FP32 dims: [ 2 ] optional: true }',
    "join": (ADD + ' input { name: "C" data_type: TYPE_FP32 dims: [ 2 ] }').replace(
        "max_batch_size: 4", ""
    ),
}
MODELS["look"] = ADD + " ".join(
    f' output {{ name: "{name}" data_type: TYPE_{name} dims: [ 1 ] }}'
    for name in ("BOOL", "INT64", "FP16", "STRING")
)
MODELS["pick"] = MODELS["many"].replace(
    '"B" data_type: TYPE_FP32 dims: [ 2 ]', '"B" data_type: TYPE_FP32 dims: [ 1 ]'
)
BATCHED = "max_batch_size: 4"


def one(model: str, taken: str = "A", given: str = "B") -> list[Step]:
    return [(model, {taken: "x"}, {given: "y"})]


def check(steps: list[Step], inputs: str = "x", outputs: str = "y", more: str = BATCHED) -> bool:
    models: dict[str, ModelConfig] = {
        name: parse_config(f'name: "{name}" {text}', model_name=name)
        for name, text in MODELS.items()
    }
    text = ensemble_config(inputs.split(","), outputs.split(","), steps, more)
    return check_steps(parse_config(f'name: "e" {text}', model_name="e"), models)


@pytest.mark.parametrize(
    ("steps", "inputs", "outputs", "more"),
    [
        (one("add"), "x", "y", BATCHED),
        (one("add"), "x", "y", "max_batch_size: 3"),
        (one("optional"), "x", "y", BATCHED),
        # A model shows its clients what is before its reshape.
        (one("inner"), "x", "y", BATCHED),
        # A model without batching, in an ensemble that has it, and the reverse.
        (one("flat"), "x", "y", BATCHED),
        (one("nobatch"), "x", "y", BATCHED),
        (one("add"), "x", "y", ""),
        (one("add"), "x FP32 -1", "y FP32 -1", ""),
        (one("any"), "x FP32 7", "y FP32 9", ""),
    ],
)
def test_steps_that_match_are_accepted(
    steps: list[Step], inputs: str, outputs: str, more: str
) -> None:
    assert not check(steps, inputs, outputs, more)


@pytest.mark.parametrize(
    ("steps", "inputs", "more", "part"),
    [
        (one("add"), "x", "max_batch_size: 8", "batch size to be 4"),
        (one("add"), "x FP32 3", BATCHED, "tensor x: inconsistent shape: [-1,3]"),
        (one("text", given="TEXT"), "x", BATCHED, "tensor y: inconsistent data type: TYPE_FP32"),
        (one("two"), "x", BATCHED, "input C in model two is not mapped"),
        (one("add", taken="Q"), "x", BATCHED, "tensor x is mapping to non-existing input Q"),
        (one("add", given="Q"), "x", BATCHED, "tensor y is mapped from non-existing output Q"),
        (
            [("text", {"A": "x"}, {"TEXT": "m"}), ("add", {"A": "m"}, {"B": "y"})],
            "x",
            BATCHED,
            "tensor m: inconsistent data type: TYPE_STRING",
        ),
    ],
)
def test_a_mismatch_is_refused(steps: list[Step], inputs: str, more: str, part: str) -> None:
    """By a part of each text; the whole ones are recorded in tests/conformance."""
    with pytest.raises(InvalidArgument) as refused:
        check(steps, inputs, more=more)
    assert part in refused.value.message


MANY: Step = ("many", {"A": "x"}, {"B": "m"})
FLAT: Step = ("flat", {"A": "x"}, {"B": "n"})
JOIN: Step = ("join", {"A": "m", "C": "n"}, {"B": "y"})


@pytest.mark.parametrize(
    ("steps", "outputs", "decoupled"),
    [
        ([MANY, ("flat", {"A": "m"}, {"B": "y"})], "y", True),
        ([("flat", {"A": "m"}, {"B": "y"}), MANY], "y,m", True),
        ([MANY, ("many", {"A": "m"}, {"B": "y"})], "y", True),
        ([MANY, ("flat", {"A": "m"}, {"B": "n"}), JOIN], "y", True),
        ([("flat", {"A": "x"}, {"B": "m"}), FLAT, JOIN], "y", False),
        # Nobody writes one of the inputs: another rule's affair.
        ([("flat", {"A": "never"}, {"B": "y"})], "y", False),
        ([MANY, ("join", {"A": "m", "C": "x"}, {"B": "y"})], "y", None),
        ([MANY, FLAT, JOIN], "y", None),
        ([MANY, ("many", {"A": "x"}, {"B": "n"}), JOIN], "y", None),
        ([MANY, ("many", {"A": "m"}, {"B": "n"}), JOIN], "y", None),
        ([MANY, FLAT], "m,n", None),
    ],
)
def test_inputs_of_a_step_must_come_through_the_same_decoupled_models(
    steps: list[Step], outputs: str, decoupled: bool | None
) -> None:
    if decoupled is not None:
        assert check(steps, outputs=outputs, more="") is decoupled
        return
    with pytest.raises(InvalidArgument) as refused:
        check(steps, outputs=outputs, more="")
    assert refused.value.message == (
        "in ensemble e, step of model 'e' receives inputs originated from different decoupled"
        " models"
    )


def test_an_ensemble_shows_its_models_what_is_after_its_reshape() -> None:
    step = 'step { model_name: "add" input_map { key: "A" value: "x" }'
    text = (
        'name: "e" platform: "ensemble" max_batch_size: 4'
        ' input { name: "x" data_type: TYPE_FP32 dims: [ 1, 2 ] reshape { shape: [ 2 ] } }'
        ' output { name: "y" data_type: TYPE_FP32 dims: [ 2, 1 ] reshape { shape: [ 2 ] } }'
        f' ensemble_scheduling {{ {step} output_map {{ key: "B" value: "y" }} }} }}'
    )
    add = parse_config(f'name: "add" {ADD}', model_name="add")
    assert not check_steps(parse_config(text, model_name="e"), {"add": add})
    other = text.replace("reshape { shape: [ 2 ] }", "reshape { shape: [ 3 ] }", 1)
    with pytest.raises(InvalidArgument, match=r"tensor x: inconsistent shape: \[-1,3\] is"):
        check_steps(parse_config(other, model_name="e"), {"add": add})


def conditional(datatype: str, condition: str, default: str = "0") -> bool:
    steps: list[Step] = [("look", {"A": "x"}, {datatype: "c"}), ("add", {"A": "x"}, {"B": "y"})]
    more = (
        f'{BATCHED} parameters {{ key: "condition.add" value {{ string_value: "{condition}" }} }}'
        f" parameters {{ key: 'default.y' value {{ string_value: '{default}' }} }}"
    )
    return check(steps, more=more)


@pytest.mark.parametrize(
    ("datatype", "condition"), [("BOOL", "not c"), ("INT64", "c == 3"), ("FP16", "c > 0.5")]
)
def test_conditions_on_tensors_of_their_kind_are_accepted(datatype: str, condition: str) -> None:
    assert not conditional(datatype, condition)
    assert not conditional(datatype, condition, "[1, 2.5]")


@pytest.mark.parametrize(
    ("datatype", "condition", "needs"),
    [
        ("BOOL", "c == 1", "numbers"),
        ("INT64", "c", "a BOOL tensor"),
        ("STRING", "c", "a BOOL tensor"),
        ("STRING", "c == 1", "numbers"),
    ],
)
def test_a_condition_on_a_tensor_of_another_kind_is_refused(
    datatype: str, condition: str, needs: str
) -> None:
    with pytest.raises(InvalidArgument) as caught:
        conditional(datatype, condition)
    is_text = {"STRING": "BYTES"}.get(datatype, datatype)
    assert caught.value.message == (
        f"in ensemble e, condition '{condition}' needs {needs}, but tensor 'c' is {is_text}"
    )


@pytest.mark.parametrize(("model", "shape"), [("add", "[-1,2]"), ("nobatch", "[-1,2]")])
def test_a_condition_on_a_tensor_of_several_elements_is_refused(model: str, shape: str) -> None:
    steps: list[Step] = [(model, {"A": "x"}, {"B": "c"}), ("flat", {"A": "x"}, {"B": "y"})]
    more = f"""{BATCHED} parameters {{ key: "condition.flat" value {{ string_value: "c > 1" }} }}
    parameters {{ key: "default.y" value {{ string_value: "0" }} }}"""
    with pytest.raises(InvalidArgument) as caught:
        check(steps, more=more)
    assert caught.value.message == (
        "in ensemble e, condition 'c > 1' needs one element in each row, but tensor 'c' has the"
        f" shape {shape}"
    )


def test_a_default_must_fit_its_tensor() -> None:
    with pytest.raises(InvalidArgument) as caught:
        conditional("BOOL", "c", "[1, 2, 3]")
    assert caught.value.message == (
        "parameter 'default.y' of ensemble 'e': the value does not have the shape [2]"
    )


def test_a_condition_comes_through_the_same_decoupled_models_as_the_inputs() -> None:
    steps: list[Step] = [
        ("pick", {"A": "x"}, {"B": "c"}),
        ("add", {"A": "x"}, {"B": "y"}),
    ]
    more = """parameters { key: "condition.add" value { string_value: "c > 1" } }
    parameters { key: "default.y" value { string_value: "0" } }"""
    with pytest.raises(InvalidArgument, match="inputs originated from different decoupled models"):
        check(steps, more=more)
