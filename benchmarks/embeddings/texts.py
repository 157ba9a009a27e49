"""The model's folder as a hub has it, and texts of mixed lengths."""

import json
import shutil
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from benchmarks.models import minilm

NAME = "minilm"
MAX_LENGTH = 256
_TEXTS = 2048
_THREADS = 1
_INPUTS = ("input_ids", "attention_mask", "token_type_ids")
_PADDING = (
    "input_ids[0] attention_mask[0] token_type_ids[0] -> last_hidden_state[0]:"
    " 8 12 16 24 32 48 64 96 128 192 256 384 512"
)
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
        'output { name: "last_hidden_state" data_type: TYPE_FP32 dims: [ -1, 384 ] }\n',
        'output { name: "sentence_embedding" data_type: TYPE_FP32 dims: [ 384 ] }\n',
        "dynamic_batching { }\ninstance_group { kind: KIND_CPU count: 1 }\n",
        f'parameters {{ key: "padding" value {{ string_value: "{_PADDING}" }} }}\n',
        'parameters { key: "max_batch_tokens" value { string_value: "16384" } }\n',
        *(
            f'parameters {{ key: "{name}_op_thread_count" value {{ string_value: "1" }} }}\n'
            for name in ("intra", "inter")
        ),
    ]
)


def write_folder(folder: Path, models: Path, *, for_nereid: bool) -> Path:
    """Write the model's folder, and return it. models: where the made model is kept."""
    file = minilm.model_file(models)
    # infinity looks for onnx/model.onnx.
    target = folder / "1" if for_nereid else folder / "onnx"
    target.mkdir(parents=True)
    shutil.copy(file, target / "model.onnx")
    shutil.copy(models / NAME / "tokenizer.json", folder / "tokenizer.json")
    (folder / "config.json").write_text(json.dumps(_HUB_CONFIG))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 512}
    settings |= {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    if for_nereid:
        (folder / "config.pbtxt").write_text(f'name: "{NAME}"\n{_CONFIG}')
    return folder


def make_texts(folder: Path) -> tuple[list[str], list[int]]:
    """Return different texts of 4 to 256 tokens, 45 on average, and their numbers of tokens."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    vocabulary = tokenizer.get_vocab()
    words = sorted(word for word in vocabulary if word.isascii() and word.isalpha())
    random = np.random.default_rng(3)
    # Most are short, as in what people write.
    drawn = np.exp(random.normal(3.5, 0.7, _TEXTS)).astype(int)
    lengths = np.clip(drawn, 4, MAX_LENGTH) - 2
    texts = [" ".join(random.choice(words, size=length)) for length in lengths]
    return texts, [len(tokenizer.encode(text).ids) for text in texts]
