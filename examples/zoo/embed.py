"""`embed`: text in, embedding out. An ensemble of a tokenizer, `minilm`, and a pooling.

The tokenizer and the pooling are model.py files for Triton's Python backend (zoo/python). All three
models can be asked by themselves as well, and share their batches with the ensemble.
"""

import shutil
from pathlib import Path

TOKENIZER_CONFIG = """\
name: "minilm_tokenizer"
backend: "python"
max_batch_size: 32
input [ { name: "text" data_type: TYPE_STRING dims: [ 1 ] } ]
output [
  { name: "input_ids" data_type: TYPE_INT64 dims: [ -1 ] },
  { name: "attention_mask" data_type: TYPE_INT64 dims: [ -1 ] },
  { name: "token_type_ids" data_type: TYPE_INT64 dims: [ -1 ] }
]
parameters { key: "vocabulary" value { string_value: "../minilm/vocab.txt" } }
instance_group [ { kind: KIND_CPU } ]
dynamic_batching { }
"""

POOLING_CONFIG = """\
name: "minilm_pooling"
backend: "python"
max_batch_size: 32
input [
  { name: "last_hidden_state" data_type: TYPE_FP32 dims: [ -1, 384 ] },
  { name: "attention_mask" data_type: TYPE_INT64 dims: [ -1 ] }
]
output [ { name: "embedding" data_type: TYPE_FP32 dims: [ 384 ] } ]
instance_group [ { kind: KIND_CPU } ]
dynamic_batching { }
"""

CONFIG = """\
name: "embed"
platform: "ensemble"
max_batch_size: 32
input [ { name: "text" data_type: TYPE_STRING dims: [ 1 ] } ]
output [ { name: "embedding" data_type: TYPE_FP32 dims: [ 384 ] } ]
ensemble_scheduling {
  step [
    {
      model_name: "minilm_tokenizer"
      model_version: -1
      input_map { key: "text" value: "text" }
      output_map { key: "input_ids" value: "ids" }
      output_map { key: "attention_mask" value: "mask" }
      output_map { key: "token_type_ids" value: "types" }
    },
    {
      model_name: "minilm"
      model_version: -1
      input_map { key: "input_ids" value: "ids" }
      input_map { key: "attention_mask" value: "mask" }
      input_map { key: "token_type_ids" value: "types" }
      output_map { key: "last_hidden_state" value: "hidden" }
    },
    {
      model_name: "minilm_pooling"
      model_version: -1
      input_map { key: "last_hidden_state" value: "hidden" }
      input_map { key: "attention_mask" value: "mask" }
      output_map { key: "embedding" value: "embedding" }
    }
  ]
}
"""

_SOURCES = Path(__file__).with_name("python")


def make_tokenizer(folder: Path) -> None:
    _write(folder, TOKENIZER_CONFIG, "tokenizer.py")


def make_pooling(folder: Path) -> None:
    _write(folder, POOLING_CONFIG, "pooling.py")


def make(folder: Path) -> None:
    _write(folder, CONFIG)


def _write(folder: Path, config: str, source: str = "") -> None:
    (folder / "config.pbtxt").write_text(config)
    (folder / "1").mkdir()
    if source:
        shutil.copyfile(_SOURCES / source, folder / "1" / "model.py")
