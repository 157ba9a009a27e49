"""Parameters for defaults of tensors."""

from typing import Any

import pytest

from nereid.core.errors import InvalidArgument
from nereid.core.tensors.datatypes import CONFIG_NUMBER
from nereid.core.tensors.tensors import from_raw
from nereid.model_config import parse_config
from nereid.model_config.defaults import read_defaults, read_input_defaults
from nereid.pb.model_config_pb2 import DataType, ModelConfig

STEPS = 'ensemble_scheduling { step { model_name: "look" } }'


def config(more: str = STEPS, **parameters: str) -> ModelConfig:
    made = parse_config(f'name: "e" {more}', model_name="e")
    for key, text in parameters.items():
        made.parameters[key].string_value = text
    return made


@pytest.mark.parametrize(
    ("text", "value"), [("0", 0), ("true", True), ('"a"', "a"), ("[[1.5], [2]]", [[1.5], [2]])]
)
def test_a_default_is_json(text: str, value: Any) -> None:
    assert read_defaults(config(**{"default.C": text})) == {"C": value}


@pytest.mark.parametrize("text", ["", "zero", "NaN", "[1", "[" * 100_000, "1" * ((1 << 20) + 1)])
def test_what_is_no_json_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument, match=r"parameter 'default\.C' of model 'e': "):
        read_defaults(config(**{"default.C": text}))


def test_defaults_of_other_models_are_those_of_optional_inputs() -> None:
    text = 'input { name: "A" optional: true } input { name: "B" }'
    given = {"default.A": "1", "default.B": "what its code reads", "default.C": "this as well"}
    assert read_defaults(config(text, **given)) == {"A": 1}


@pytest.mark.parametrize("datatype", sorted(CONFIG_NUMBER))
def test_an_optional_input_of_any_datatype_has_a_default(datatype: str) -> None:
    given = {"BOOL": "true", "BYTES": '"a"', "FP64": "-1"}.get(datatype, "1")
    name = DataType.Name(CONFIG_NUMBER[datatype])
    text = f'input {{ name: "A" data_type: {name} dims: [ 2 ] optional: true }}'
    ((shape, raw),) = read_input_defaults(config(text, **{"default.A": given})).values()
    assert shape == (2,)
    (first, second) = from_raw(raw, datatype, shape).tolist()
    assert first == second
    assert first == {"BYTES": b"a", "FP64": -1, "BF16": 0x3F80}.get(datatype, 1)


@pytest.mark.parametrize(
    ("tensor", "value", "error"),
    [
        ("dims: [ -1 ]", "0", "variable dimension"),
        ("dims: 1", "1.5", "1.5 is no INT32 value"),
        ("dims: 1 is_shape_tensor: true", "1", "a shape tensor cannot have a default"),
    ],
)
def test_a_default_that_does_not_fit_its_input_is_refused(
    tensor: str, value: str, error: str
) -> None:
    text = f'input {{ name: "A" data_type: TYPE_INT32 optional: true {tensor} }}'
    with pytest.raises(InvalidArgument, match=error):
        read_input_defaults(config(text, **{"default.A": value}))
