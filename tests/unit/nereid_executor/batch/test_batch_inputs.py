"""Each kind of batch_input, by the examples of the configuration's own documentation and others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from nereid.backends import EMPTY_DESCRIPTION
from nereid.core.errors import Internal
from nereid_executor.batch.batch_inputs import batch_inputs_of
from nereid_executor.batch.request_plan import make_plan, signature_of
from tests.support.models.onnx_models import config, head

CONFIG = """
max_batch_size: 8
input {{ name: "x" data_type: TYPE_FP32 dims: [ -1, -1 ] allow_ragged_batch: true optional: true }}
input {{ name: "w" data_type: TYPE_FP32 dims: [ 1 ] }}
batch_input {{
  kind: {kind} target_name: [ "one", "other" ] source_input: "x" data_type: {datatype}
}}
"""
# Three rows: a request of two, and one.
SHAPES = [[2, 3, 1], [1, 2, 2]]


def arrays(kind: str, datatype: str, shapes: list[list[int]]) -> dict[str, Any]:
    configured = config(CONFIG.format(kind=kind, datatype=datatype))
    signature = signature_of(configured, 1, EMPTY_DESCRIPTION, bytes_as_text=False)
    (batch_input,) = batch_inputs_of(configured)
    return batch_input.arrays(
        [make_plan(signature, head(("x", "FP32", shape))) for shape in shapes]
    )


@pytest.mark.parametrize("datatype", ["INT32", "FP32"])
@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("BATCH_ELEMENT_COUNT", [6, 4]),
        ("BATCH_ACCUMULATED_ELEMENT_COUNT", [6, 10]),
        ("BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO", [0, 6, 10]),
        ("BATCH_MAX_ELEMENT_COUNT_AS_SHAPE", [0] * 6),
        ("BATCH_ITEM_SHAPE", [[3, 1], [3, 1], [2, 2]]),
        ("BATCH_ITEM_SHAPE_FLATTEN", [3, 1, 3, 1, 2, 2]),
    ],
)
def test_what_the_model_gets(kind: str, datatype: str, expected: list[Any]) -> None:
    given = arrays(kind, f"TYPE_{datatype}", SHAPES)
    assert [*given] == ["one", "other"]
    for array in given.values():
        assert array.dtype == {"INT32": np.int32, "FP32": np.float32}[datatype]
        assert array.tolist() == expected


def test_a_batch_without_elements_has_its_ranks() -> None:
    empty = [[1, 0, 2]]
    assert arrays("BATCH_MAX_ELEMENT_COUNT_AS_SHAPE", "TYPE_INT32", empty)["one"].shape == (0,)
    assert arrays("BATCH_ITEM_SHAPE", "TYPE_INT32", empty)["one"].tolist() == [[0, 2]]
    assert arrays("BATCH_ITEM_SHAPE", "TYPE_INT32", [[0, 1, 2]])["one"].shape == (0, 2)


def test_a_batch_without_the_source_fails() -> None:
    configured = config(CONFIG.format(kind="BATCH_ELEMENT_COUNT", datatype="TYPE_INT32"))
    signature = signature_of(configured, 1, EMPTY_DESCRIPTION, bytes_as_text=False)
    (batch_input,) = batch_inputs_of(configured)
    with pytest.raises(Internal, match="batch input 'one' needs input 'x'"):
        batch_input.arrays([make_plan(signature, head(("w", "FP32", [1, 1])))])


def test_one_without_a_target_is_left_out() -> None:
    text = 'batch_input { source_input: "x" data_type: TYPE_INT32 }'
    assert batch_inputs_of(config(text)) == ()
