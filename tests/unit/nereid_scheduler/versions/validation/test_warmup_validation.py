"""Warmup samples are checked like requests."""

import pytest

from nereid.core.errors import InvalidArgument
from nereid_scheduler.versions.validation.warmup_validation import check_samples
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


_SEQUENCES = """sequence_batching {
  control_input { name: "START" control { kind: CONTROL_SEQUENCE_START fp32_false_true: [0, 1] } }
  control_input { name: "ID" control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 } }
}"""


@pytest.mark.parametrize(
    "inputs",
    [
        (X,),
        (X, tensor("START", "FP32", "1")),
        (X, tensor("START", "FP32", "1"), tensor("ID", "UINT64", "1")),
    ],
    ids=["none", "one", "all"],
)
def test_a_sample_of_a_stateful_model_may_have_control_tensors(inputs: tuple[str, ...]) -> None:
    check_samples(model_of(_MODEL + _SEQUENCES + sample(*inputs), backend="python"))


def test_control_tensors_of_samples_have_the_type_of_their_values() -> None:
    wrong = sample(X, tensor("START", "INT32", "1"))
    with pytest.raises(InvalidArgument, match="input 'START' data-type is 'INT32', but model"):
        check_samples(model_of(_MODEL + _SEQUENCES + wrong, backend="python"))
