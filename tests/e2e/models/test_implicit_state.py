"""A stateful ONNX model: the state of each sequence stays with its instance, and is right."""

import queue
import random
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import tritonclient.grpc

from tests.support.mesh.mesh import running
from tests.support.models import onnx_models

pytestmark = pytest.mark.slow

INPUTS, HIDDEN = 3, 4
CONFIG = """
backend: "onnxruntime"
max_batch_size: 8
input {{ name: "X" data_type: TYPE_FP32 dims: [{inputs}] }}
output {{ name: "Y" data_type: TYPE_FP32 dims: [{hidden}] }}
instance_group [{{ count: 1 kind: KIND_CPU }}]
sequence_batching {{
  max_sequence_idle_microseconds: 60000000
  {strategy}
  state {{
    input_name: "H" output_name: "H_OUT" data_type: TYPE_FP32 dims: [{hidden}]
    initial_state {{ data_type: TYPE_FP32 dims: [{hidden}] {initial} name: "first" }}
  }}
}}
"""


def offline(path: Path, steps: np.ndarray[Any, Any], first: np.ndarray[Any, Any]) -> Any:
    """The outputs of one sequence, one request after the other."""
    session = onnxruntime.InferenceSession(path / "model.onnx")
    state, outputs = first[None], []
    for step in steps:
        output, state = session.run(["Y", "H_OUT"], {"X": step[None], "H": state})
        outputs.append(output[0])
    return np.stack(outputs)


@pytest.mark.parametrize("strategy", ["direct { }", "oldest { max_candidate_sequences: 32 }"])
@pytest.mark.parametrize(
    "initial",
    [pytest.param("zero_data: true", marks=pytest.mark.nightly), 'data_file: "first.bin"'],
)
def test_interleaved_sequences_equal_the_offline_result(
    tmp_path: Path, strategy: str, initial: str
) -> None:
    sequences, length = 80, 5
    version = onnx_models.gru(tmp_path / "models" / "gru" / "1", INPUTS, HIDDEN)
    config = CONFIG.format(strategy=strategy, initial=initial, inputs=INPUTS, hidden=HIDDEN)
    (version.parent / "config.pbtxt").write_text(config)
    first = np.zeros(HIDDEN, np.float32)
    if "data_file" in initial:
        first = np.linspace(-1, 1, HIDDEN, dtype=np.float32)
        (version.parent / "initial_state").mkdir()
        (version.parent / "initial_state" / "first.bin").write_bytes(first.tobytes())
    values = np.random.default_rng(1).normal(size=(sequences, length, INPUTS)).astype(np.float32)
    order = [which for which in range(sequences) for _ in range(length)]
    random.Random(2).shuffle(order)
    sent: defaultdict[int, int] = defaultdict(int)
    results: queue.Queue[tuple[Any, Any]] = queue.Queue()
    with (
        running(tmp_path / "models", tmp_path / "log", executors=2) as mesh,
        tritonclient.grpc.InferenceServerClient(mesh.grpc) as client,
    ):
        client.start_stream(lambda result, error: results.put((result, error)))
        for which in order:
            step = sent[which]
            sent[which] += 1
            tensor = tritonclient.grpc.InferInput("X", [1, INPUTS], "FP32")
            tensor.set_data_from_numpy(values[which, step][None])
            client.async_stream_infer(
                "gru",
                [tensor],
                request_id=f"{which}-{step}",
                sequence_id=which + 1,
                sequence_start=step == 0,
                sequence_end=step == length - 1,
            )
        got = np.zeros((sequences, length, HIDDEN), np.float32)
        for _ in order:
            result, error = results.get(timeout=60)
            assert error is None
            which_text, _, step_text = result.get_response().id.partition("-")
            got[int(which_text), int(step_text)] = result.as_numpy("Y")[0]
        client.stop_stream()
        batches = mesh.counts("gru")
    for which in range(sequences):
        np.testing.assert_allclose(got[which], offline(version, values[which], first), rtol=1e-5)
    # They ran together.
    assert batches["execution_count"] < batches["inference_count"]
