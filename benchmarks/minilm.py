"""A real model with a response cache, and any number of requests to it that differ.

Made by examples/make_models.py. Must not know how a server is started or loaded.
"""

import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tritonclient.http as triton_http

from benchmarks.failure import BenchError

NAME = "minilm"
HTTP_PATH = f"/v2/models/{NAME}/infer"
_OUTPUT = "sentence_embedding"
_MAKER = Path(__file__).parents[1] / "examples" / "make_models.py"
# MiniLM's vocabulary has 30522 words; the first two thousand are no whole words.
_FIRST_WORD, _WORDS = 2000, 28000


@dataclass(frozen=True)
class Bodies:
    """HTTP bodies of one length, one after the other."""

    data: bytes
    each_bytes: int
    header_length: int


def write_repository(repository: Path, models: Path, *, cached: bool = True) -> Path:
    """The model as it is made; ``models`` keeps it for the next time. cached: responses are."""
    made = subprocess.run(
        [sys.executable, str(_MAKER), "--only", NAME, "--output", str(models)],
        capture_output=True,
        text=True,
        check=False,
    )
    if made.returncode != 0:
        raise BenchError(f"{NAME} could not be made: {made.stderr[-500:]}")
    shutil.copytree(models / NAME, repository / NAME, dirs_exist_ok=True)
    if cached:
        with (repository / NAME / "config.pbtxt").open("a") as config:
            config.write("\nresponse_cache { enable: true }\n")
    return repository


def bodies(repository: Path, first: int, count: int) -> Bodies:
    """Sentences number first and on: one of the examples' own, two words of it exchanged."""
    with np.load(repository / NAME / "expected" / "expected.npz") as expected:
        tensors = {
            name: expected[name][:1].astype(np.int64)
            for name in ("input_ids", "attention_mask", "token_type_ids")
        }
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
