"""The models' folders as a hub has them, texts of mixed lengths, and questions about a text."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from tokenizers import Tokenizer

from benchmarks.models import minilm

NAME = "minilm"
# The same encoder with a head of one logit, which decides about pairs of texts.
DECIDER = "decider"
MAX_LENGTH = 256
MAX_QUESTIONS = 400
_TEXTS = 2048
_SUBJECTS = 6
_INPUTS = ("input_ids", "attention_mask", "token_type_ids")

Pair = tuple[str, str]

_HUB_CONFIG = {
    "architectures": ["BertModel"],
    "model_type": "bert",
    "hidden_size": 384,
    "intermediate_size": 1536,
    "num_attention_heads": 12,
    "num_hidden_layers": 6,
    "max_position_embeddings": 512,
    "vocab_size": 30522,
    "pad_token_id": 0,
    "type_vocab_size": 2,
}
# What an export gets by itself, but for instances and threads, which are those of all peers.
_CONFIG = "".join(
    [
        'backend: "onnxruntime"\nmax_batch_size: 32\n',
        *(f'input {{ name: "{name}" data_type: TYPE_INT64 dims: [ -1 ] }}\n' for name in _INPUTS),
        "dynamic_batching { }\ninstance_group { kind: KIND_CPU count: 1 }\n",
        'parameters { key: "max_batch_tokens" value { string_value: "16384" } }\n',
        *(
            f'parameters {{ key: "{name}_op_thread_count" value {{ string_value: "1" }} }}\n'
            for name in ("intra", "inter")
        ),
    ]
)
_PADDED = " ".join(f"{name}[0]" for name in _INPUTS)
_SIZES = "8 12 16 24 32 48 64 96 128 192 256 384 512"
_EMBEDDER_CONFIG = f"""{_CONFIG}
output {{ name: "last_hidden_state" data_type: TYPE_FP32 dims: [ -1, 384 ] }}
output {{ name: "sentence_embedding" data_type: TYPE_FP32 dims: [ 384 ] }}
parameters {{
  key: "padding" value {{ string_value: "{_PADDED} -> last_hidden_state[0]: {_SIZES}" }}
}}
"""
_DECIDER_CONFIG = f"""{_CONFIG}
output {{ name: "logits" data_type: TYPE_FP32 dims: [ 1 ] }}
parameters {{ key: "padding" value {{ string_value: "{_PADDED}: {_SIZES}" }} }}
"""
_DECIDER_FILES = {
    "architectures": ["BertForSequenceClassification"],
    "id2label": {"0": "relevance"},
}


def write_embedder(folder: Path, models: Path, *, for_nereid: bool) -> Path:
    """Write the folder of MiniLM, and return it. models: where the made model is kept."""
    shutil.copy(minilm.model_file(models), _model_path(folder, for_nereid=for_nereid))
    _write_files(folder, models, _HUB_CONFIG)
    if for_nereid:
        (folder / "config.pbtxt").write_text(_EMBEDDER_CONFIG)
    return folder


def write_decider(folder: Path, models: Path, *, for_nereid: bool) -> Path:
    """Write the folder of MiniLM with a head of one logit, and return it."""
    model = onnx.load(str(minilm.model_file(models)))
    head = np.random.default_rng(7).normal(size=(384, 1)).astype(np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(head, "head"))
    model.graph.node.append(
        onnx.helper.make_node("MatMul", ["sentence_embedding", "head"], ["logits"])
    )
    del model.graph.output[:]
    model.graph.output.append(
        onnx.helper.make_tensor_value_info("logits", onnx.TensorProto.FLOAT, ["batch", 1])
    )
    onnx.save(model, str(_model_path(folder, for_nereid=for_nereid)))
    _write_files(folder, models, _HUB_CONFIG | _DECIDER_FILES)
    if for_nereid:
        (folder / "config.pbtxt").write_text(_DECIDER_CONFIG)
        (folder / "text.json").write_text('{"task": "decide"}')
    return folder


def _model_path(folder: Path, *, for_nereid: bool) -> Path:
    # infinity looks for onnx/model.onnx.
    target = folder / "1" if for_nereid else folder / "onnx"
    target.mkdir(parents=True)
    return target / "model.onnx"


def _write_files(folder: Path, models: Path, config: dict[str, Any]) -> None:
    shutil.copy(models / NAME / "tokenizer.json", folder / "tokenizer.json")
    (folder / "config.json").write_text(json.dumps(config))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 512}
    settings |= {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def make_texts(folder: Path) -> tuple[list[str], list[int]]:
    """Return different texts of 4 to 256 tokens, 42 on average, and their numbers of tokens."""
    tokenizer, words = _read_tokenizer(folder)
    random = np.random.default_rng(3)
    # Most are short, as in what people write.
    drawn = np.exp(random.normal(3.5, 0.7, _TEXTS)).astype(int)
    lengths = np.clip(drawn, 4, MAX_LENGTH) - 2
    texts = [" ".join(random.choice(words, size=length)) for length in lengths]
    return texts, [len(tokenizer.encode(text).ids) for text in texts]


def make_questions(folder: Path) -> tuple[list[Pair], list[int]]:
    """Return pairs of an input and a question, and their numbers of tokens.

    MAX_QUESTIONS successive ones have the same input of about 45 tokens. Questions have 5 to 25.
    """
    tokenizer, words = _read_tokenizer(folder)
    random = np.random.default_rng(4)
    inputs = [" ".join(random.choice(words, size=40)) for _ in range(_SUBJECTS)]
    pairs = [
        (text, " ".join(random.choice(words, size=length)))
        for text in inputs
        for length in random.integers(5, 21, MAX_QUESTIONS)
    ]
    return pairs, [len(each.ids) for each in tokenizer.encode_batch(pairs)]


def _read_tokenizer(folder: Path) -> tuple[Tokenizer, list[str]]:
    """Return a model's tokenizer, without its limits, and words of its vocabulary."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer, sorted(
        word for word in tokenizer.get_vocab() if word.isascii() and word.isalpha()
    )
