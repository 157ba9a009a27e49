"""Files of a model's directory that say how texts become its tensors."""

from __future__ import annotations

from typing import Final

from nereid.text.layers import WEIGHTS, WITH_WEIGHTS

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
# Modules behind the pooling, by their places in modules.json.
_LAYERS: Final = tuple(f"{place}_{kind}" for place in range(2, 6) for kind in WITH_WEIGHTS)
_LAYER_CONFIGS: Final = tuple(f"{folder}/config.json" for folder in _LAYERS)
_LAYER_WEIGHTS: Final = tuple(f"{folder}/{WEIGHTS}" for folder in _LAYERS)
DECISIONS: Final = (
    "noulxp.json",
    "odxp.json",
    "template.json",
    "prompt.json",
    "calibration.json",
    "tokenizer/tokenizer.json",
)
ALL: Final = (
    MAPPING,
    *HUGGING_FACE,
    *SENTENCE_TRANSFORMERS,
    *_LAYER_CONFIGS,
    *_LAYER_WEIGHTS,
    *DECISIONS,
)
TOKENIZERS: Final = (TOKENIZER, "tokenizer/tokenizer.json")
# Files whose presence is all that a mapping depends on.
LARGE: Final = frozenset({*TOKENIZERS, *_LAYER_WEIGHTS})
# Sum of a model's files that are sent to gateways.
MAX_BYTES: Final = 64 << 20
