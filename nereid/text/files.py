"""Files of a model's directory that say how texts become its tensors."""

from __future__ import annotations

from typing import Final

MAPPING: Final = "text.json"
TOKENIZER: Final = "tokenizer.json"
HUGGING_FACE: Final = (
    TOKENIZER,
    "tokenizer_config.json",
    "special_tokens_map.json",
    "config.json",
    "generation_config.json",
    "chat_template.jinja",
    "chat_template.json",
)
SENTENCE_TRANSFORMERS: Final = (
    "modules.json",
    "sentence_bert_config.json",
    "config_sentence_transformers.json",
    "1_Pooling/config.json",
    "1_SpladePooling/config.json",
)
DECISIONS: Final = (
    "noulxp.json",
    "odxp.json",
    "template.json",
    "prompt.json",
    "calibration.json",
    "tokenizer/tokenizer.json",
)
ALL: Final = (MAPPING, *HUGGING_FACE, *SENTENCE_TRANSFORMERS, *DECISIONS)
# Large files, whose presence is all that a mapping depends on.
TOKENIZERS: Final = (TOKENIZER, "tokenizer/tokenizer.json")
# Sum of a model's files that are sent to gateways.
MAX_BYTES: Final = 64 << 20
