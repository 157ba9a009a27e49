"""`textgen`: a small GPT-2 whose text comes token by token, served by a decoupled Python model.

Its weights are random, of a fixed seed: what it says means nothing and is the same each time.
Tokens are characters. What NumPy computes offline lies beside the model, so that a client can check
whether serving, or the cache between tokens, changed anything.
"""

import json
import shutil
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from . import gpt, gpt_graph

SEED = 4
SHAPE = gpt.GptShape(layers=4, heads=4, hidden=128, context=512, vocabulary=96)
# In the order of their tokens.
CHARACTERS = "\n" + "".join(map(chr, range(32, 127)))
CHAT_TEMPLATE = """\
{% if tools %}tools: {{ tools | tojson }}
{% endif %}
{% for message in messages %}
{{ message.role }}: {{ message.content }}
{% endfor %}
{% if add_generation_prompt %}assistant: {% endif %}"""
# Calls of tools would be written as Hermes writes them.
TEXT = {
    "task": "generate",
    "max_tokens": SHAPE.context,
    "generation": {"tool_parser": "hermes", "max_tokens": 64},
}
PROMPTS = ("Once upon a time", "2 + 2 =")
LENGTH = 32

CONFIG = """\
name: "textgen"
backend: "python"
max_batch_size: 0
model_transaction_policy { decoupled: true }
input [
  {
    name: "text_input"
    data_type: TYPE_STRING
    dims: [ 1 ]
  },
  {
    name: "max_tokens"
    data_type: TYPE_INT32
    dims: [ 1 ]
    optional: true
  }
]
output [
  {
    name: "text_output"
    data_type: TYPE_STRING
    dims: [ 1 ]
  }
]
instance_group [ { count: 1 kind: KIND_CPU } ]
"""


def tokenizer() -> Tokenizer:
    """Return a tokenizer whose tokens are characters."""
    letters = CHARACTERS.replace("\n", "\u010a").replace(" ", "\u0120")
    made = Tokenizer(models.BPE({letter: number for number, letter in enumerate(letters)}, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    return made


def make(folder: Path) -> None:
    weights = gpt.random_weights(SHAPE, SEED)
    version = folder / "1"
    version.mkdir()
    (version / "decoder.onnx").write_bytes(gpt_graph.build(SHAPE, weights).SerializeToString())
    (version / "characters.txt").write_text(CHARACTERS)
    shutil.copy(Path(__file__).with_name("textgen_model.py"), version / "model.py")
    (folder / "config.pbtxt").write_text(CONFIG)
    tokenizer().save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    (folder / "text.json").write_text(json.dumps(TEXT))
    texts = []
    for prompt in PROMPTS:
        tokens = [CHARACTERS.index(each) for each in prompt]
        generated = gpt.greedy(SHAPE, weights, tokens, LENGTH)
        texts.append("".join(CHARACTERS[each] for each in generated))
    (folder / "expected").mkdir()
    np.savez_compressed(folder / "expected" / "expected.npz", prompts=PROMPTS, texts=texts)
