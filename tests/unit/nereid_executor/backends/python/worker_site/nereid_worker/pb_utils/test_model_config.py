"""The configuration that a model's auto_complete_config may change, and how."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from nereid_executor.backends.python.worker_site.nereid_worker.pb_utils import api

# Models have no types.
pb: Any = api


def config(**written: Any) -> Any:
    return pb.ModelConfig(
        json.dumps({"name": "m", "max_batch_size": 0, "input": [], "output": [], **written})
    )


def tensor(**about: Any) -> dict[str, Any]:
    return {"name": "X", "data_type": "TYPE_FP32", "dims": [4], **about}


def test_a_configuration_is_completed() -> None:
    made = config()
    made.set_max_batch_size(8)
    made.set_dynamic_batching()
    made.add_input(tensor(optional=True))
    made.add_output(tensor(name="Y"))
    made.set_model_transaction_policy({"decoupled": True})
    assert made.as_dict() == {
        "name": "m",
        "max_batch_size": 8,
        "dynamic_batching": {},
        "input": [tensor(optional=True)],
        "output": [tensor(name="Y")],
        "model_transaction_policy": {"decoupled": True},
    }
    as_dict = made.as_dict()
    assert pb.get_input_config_by_name(as_dict, "X") == tensor(optional=True)
    assert pb.get_input_config_by_name(as_dict, "Y") is None
    assert pb.get_output_config_by_name(as_dict, "Y") == tensor(name="Y")
    assert pb.using_decoupled_model_transaction_policy(as_dict)
    assert not pb.using_decoupled_model_transaction_policy({})


def test_what_is_written_may_be_said_again() -> None:
    made = config(max_batch_size=4, input=[tensor()], output=[tensor(dims=[])])
    made.set_max_batch_size(8)
    made.add_input(tensor())
    made.add_output(tensor(dims=[2]))
    assert made.as_dict()["output"] == [tensor(dims=[2])]


@pytest.mark.parametrize(
    ("written", "change", "text"),
    [
        ({"max_batch_size": 9}, lambda c: c.set_max_batch_size(8), "specified max_batch_size 9"),
        ({"sequence_batching": {}}, lambda c: c.set_dynamic_batching(), "'sequence_batching'"),
        ({}, lambda c: c.add_input({"data_type": "TYPE_FP32", "dims": [1]}), "missing 'name'"),
        ({}, lambda c: c.add_input({"name": "X", "dims": [1]}), "missing 'data_type'"),
        ({}, lambda c: c.add_output({"name": "X", "data_type": "TYPE_FP32"}), "missing 'dims'"),
        ({}, lambda c: c.add_output(tensor(optional=True)), "contains property other than"),
        ({"input": [tensor()]}, lambda c: c.add_input(tensor(dims=[5])), r"expects dims \[5\]"),
        (
            {"input": [tensor()]},
            lambda c: c.add_input(tensor(data_type="TYPE_INT8")),
            "expects datatype TYPE_FP32 for input 'X', model provides TYPE_INT8",
        ),
        ({}, lambda c: c.set_model_transaction_policy({"x": 1}), "other than 'decoupled'"),
        (
            {"model_transaction_policy": {"decoupled": False}},
            lambda c: c.set_model_transaction_policy({"decoupled": True}),
            "already set to 'False'",
        ),
    ],
)
def test_what_contradicts_the_configuration(
    written: dict[str, Any], change: Callable[[Any], None], text: str
) -> None:
    with pytest.raises(ValueError, match=text):
        change(config(**written))
