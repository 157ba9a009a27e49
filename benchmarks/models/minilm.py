"""MiniLM, a real model with a response cache, and any number of different requests.

The model is made by examples/make_models.py. This module must not know how a server is started or
loaded.
"""

import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tritonclient.http as triton_http

from benchmarks.failure import BenchError
from benchmarks.models.workload import Workload, write_onnx

NAME = "minilm"
HTTP_PATH = f"/v2/models/{NAME}/infer"
_OUTPUT = "sentence_embedding"
_MAKER = Path(__file__).parents[2] / "examples" / "make_models.py"
# MiniLM's vocabulary has 30522 words; the first two thousand are no whole words.
_FIRST_WORD, _WORDS = 2000, 28000
_INPUTS = ("input_ids", "attention_mask", "token_type_ids")
_LENGTH = 128
_MAX_BATCH_SIZE = 32
_CONFIG = f"""\
name: "{NAME}"
backend: "{{backend}}"
max_batch_size: {_MAX_BATCH_SIZE}
input [
  {{{{ name: "input_ids" data_type: TYPE_INT64 dims: [ -1 ] }}}},
  {{{{ name: "attention_mask" data_type: TYPE_INT64 dims: [ -1 ] }}}},
  {{{{ name: "token_type_ids" data_type: TYPE_INT64 dims: [ -1 ] }}}}
]
output [
  {{{{ name: "last_hidden_state" data_type: TYPE_FP32 dims: [ -1, 384 ] }}}},
  {{{{ name: "{_OUTPUT}" data_type: TYPE_FP32 dims: [ 384 ] }}}}
]
instance_group [ {{{{ kind: KIND_CPU count: 1 }}}} ]
dynamic_batching {{{{ }}}}
parameters {{{{ key: "intra_op_thread_count" value {{{{ string_value: "1" }}}} }}}}
parameters {{{{ key: "inter_op_thread_count" value {{{{ string_value: "1" }}}} }}}}
"""


@dataclass(frozen=True)
class Bodies:
    """HTTP bodies of equal length, concatenated."""

    data: bytes
    each_bytes: int
    header_length: int


def write_repository(repository: Path, models: Path, *, cached: bool = True) -> Path:
    """Write the model.

    models: folder that keeps the model for later runs. cached: responses are cached.
    """
    _make(models)
    shutil.copytree(models / NAME, repository / NAME, dirs_exist_ok=True)
    if cached:
        with (repository / NAME / "config.pbtxt").open("a") as config:
            config.write("\nresponse_cache { enable: true }\n")
    return repository


def workload(cache: Path) -> Workload:
    """Return the workload of sentences of 128 tokens.

    The sentences are those of the examples, padded. Padding changes neither the model's work nor
    the embeddings that NumPy has computed.
    """
    graph = model_file(cache)

    def write(repository: Path, backend: str) -> None:
        write_onnx(repository, NAME, graph, _CONFIG, backend)

    with np.load(cache / NAME / "expected" / "expected.npz") as known:
        inputs = {name: known[name].astype(np.int64) for name in _INPUTS}
        expected = {_OUTPUT: known[_OUTPUT]}
    padding = _LENGTH - inputs["input_ids"].shape[1]
    return Workload(
        name=NAME,
        served=NAME,
        inputs={name: np.pad(array, ((0, 0), (0, padding))) for name, array in inputs.items()},
        expected=expected,
        write=write,
        graph=graph,
        batched=NAME,
        max_batch_size=_MAX_BATCH_SIZE,
        tolerance=1e-3,
        concurrency=(1, 4, 16),
        batches=(1, 2, 4, 8, 16),
        seconds=3,
        warm_s=2,
    )


def model_file(models: Path) -> Path:
    """Return the model's file, and make it if it is missing."""
    _make(models)
    return models / NAME / "1" / "model.onnx"


def _make(models: Path) -> None:
    made = subprocess.run(
        [sys.executable, str(_MAKER), "--only", NAME, "--output", str(models)],
        capture_output=True,
        text=True,
        check=False,
    )
    if made.returncode != 0:
        raise BenchError(f"{NAME} could not be made: {made.stderr[-500:]}")


def bodies(repository: Path, first: int, count: int) -> Bodies:
    """Return bodies of sentences, numbered from `first` on.

    Each sentence is an example with two words exchanged.
    """
    with np.load(repository / NAME / "expected" / "expected.npz") as expected:
        tensors = {name: expected[name][:1].astype(np.int64) for name in _INPUTS}
    parts, length = [], 0
    for number in range(first, first + count):
        words = number % _WORDS, number // _WORDS
        tensors["input_ids"][0, 2:4] = [_FIRST_WORD + word for word in words]
        inputs = []
        for name, array in tensors.items():
            inputs.append(triton_http.InferInput(name, list(array.shape), "INT64"))
            inputs[-1].set_data_from_numpy(array)
        body, length = triton_http.InferenceServerClient.generate_request_body(
            inputs, outputs=[triton_http.InferRequestedOutput(_OUTPUT, binary_data=True)]
        )
        parts.append(bytes(body))
    return Bodies(b"".join(parts), len(parts[0]), int(length))
