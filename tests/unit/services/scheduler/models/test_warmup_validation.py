"""Warmup samples are checked like requests."""

import pytest

from nereid.core.errors import InvalidArgument
from nereid.services.scheduler.models.warmup_validation import check_samples
from tests.support.scheduler.samples import model_of

_MODEL = """max_batch_size: 4
input { name: "X" data_type: TYPE_FP32 dims: [3] }
input { name: "S" data_type: TYPE_STRING dims: [-1] optional: true }
output { name: "Y" data_type: TYPE_FP32 dims: [3] }
"""


def sample(*inputs: str, batch_size: int = 1) -> str:
    of = " ".join(f"inputs {{ {each} }}" for each in inputs)
    return f'model_warmup {{ name: "w" batch_size: {batch_size} {of} }}'


def tensor(name: str, datatype: str, dims: str) -> str:
    data = f"data_type: TYPE_{datatype} dims: [{dims}] zero_data: true"
    return f'key: "{name}" value {{ {data} }}'


X, S = tensor("X", "FP32", "3"), tensor("S", "STRING", "2")


@pytest.mark.parametrize(
    "samples",
    [
        sample(X),
        sample(X, S, batch_size=4),
        # With a tensor that executors ignore.
        sample(X, tensor("Z", "FP32", "3")),
        # One that is never run.
        sample(tensor("X", "INT32", "7"), batch_size=0),
    ],
)
def test_samples_that_fit(samples: str) -> None:
    check_samples(model_of(_MODEL + samples, backend="python"))


@pytest.mark.parametrize(
    ("inputs", "text"),
    [
        ((), "but got 0 inputs for model"),
        ((tensor("X", "INT32", "3"),), "inference input 'X' data-type is 'INT32', but model"),
        ((tensor("X", "FP32", "2"),), "unexpected shape for input 'X' for model"),
        ((tensor("Z", "FP32", "3"),), "but got 0 inputs for model"),
    ],
)
def test_samples_that_do_not_fit_are_refused_like_requests(
    inputs: tuple[str, ...], text: str
) -> None:
    with pytest.raises(InvalidArgument) as refused:
        check_samples(model_of(_MODEL + sample(X) + sample(*inputs), backend="python"))
    assert text in refused.value.message
