from typing import Any

import pytest

from nereid_analyze.result.refusals import refusals

_INPUT = {"name": "x", "data_type": "TYPE_FP32", "dims": ["-1", "3"]}
_CONFIG: dict[str, Any] = {
    "max_batch_size": 16,
    "input": [_INPUT],
    "output": [{"name": "y", "data_type": "TYPE_FP32", "dims": [3]}],
}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, []),
        ({"max_batch_size": 32}, []),
        ({"max_batch_size": 8}, ["requests of 9 to 16 rows; the largest known batch has 4"]),
        ({"max_batch_size": 15}, ["requests of 16 rows; the largest known batch has 4"]),
        ({"max_batch_size": 0}, ["all requests as they are now, with a batch dimension"]),
        ({"input": [{**_INPUT, "dims": [-1, -1]}]}, []),
        ({"input": [{**_INPUT, "dims": [5, 3]}]}, ["'x' of shape [-1, 3] where it is not [5, 3]"]),
        ({"input": [{**_INPUT, "dims": [3]}]}, ["'x' of shape [-1, 3] where it is not [3]"]),
        ({"input": [{**_INPUT, "data_type": "TYPE_FP16"}]}, ["'x' as TYPE_FP32: TYPE_FP16 only"]),
        ({"input": []}, ["requests with an input 'x'"]),
        ({"input": [_INPUT, {**_INPUT, "name": "z"}]}, ["requests without an input 'z'"]),
        ({"input": [_INPUT, {**_INPUT, "name": "z", "optional": True}]}, []),
        ({"output": []}, ["requests for an output 'y'"]),
    ],
)
def test_what_was_accepted_and_is_not(change: dict[str, Any], expected: list[str]) -> None:
    assert list(refusals(_CONFIG, {**_CONFIG, **change}, 4)) == expected


def test_without_the_batch_dimension() -> None:
    config = {**_CONFIG, "max_batch_size": 0}
    assert list(refusals(config, _CONFIG, 0)) == [
        "all requests as they are now, without the batch dimension"
    ]
