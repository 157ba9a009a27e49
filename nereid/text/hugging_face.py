"""Facts in the files of Hugging Face's transformers and sentence-transformers."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from nereid.core.errors import InvalidArgument
from nereid.text.documents import Document, parse_document, parse_documents
from nereid.text.layers import NORMALIZE, WITH_WEIGHTS, read_layer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nereid.text.layers import Layer

_CLASSIFIER: Final = "ForSequenceClassification"
_CAUSAL: Final = ("ForCausalLM", "LMHeadModel")
# transformers leaves id2label out of config.json for this many labels.
_DEFAULT_LABELS: Final = 2
MAX_LABELS: Final = 100_000
# Positions of these count from the id of the padding token.
_POSITIONS_AFTER_PADDING: Final = frozenset(
    {
        "camembert",
        "data2vec-text",
        "longformer",
        "mpnet",
        "roberta",
        "xlm-roberta",
        "xlm-roberta-xl",
    }
)
# Larger values stand for "no limit": tokenizers without one say 1e30.
_MAX_LENGTH: Final = 1 << 24
_NUMBER: Final = re.compile("[0-9]{1,9}")
_POOLING_MODES: Final = {
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "cls",
    "pooling_mode_lasttoken": "last",
    "pooling_mode_max_tokens": "max",
}
_OTHER_POOLING_MODES: Final = (
    "pooling_mode_mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens",
)
_PROBLEMS: Final = {
    "": "softmax",
    "single_label_classification": "softmax",
    "multi_label_classification": "sigmoid",
    "regression": "none",
}
_SPLADE: Final = "SpladePooling"
# Modules of sentence-transformers.
_POOLING: Final = "Pooling"
_WITHOUT_EFFECT: Final = frozenset({"Transformer", "Dropout"})
# Modules without a graph for texts.
_WITHOUT_GRAPH: Final = frozenset({"WordEmbeddings", "StaticEmbedding", "BoW", "CLIPModel"})
_SPECIAL_TOKENS: Final = ("bos_token", "eos_token", "unk_token", "pad_token")
POOLINGS: Final = tuple(_POOLING_MODES.values())


class HuggingFaceFiles:
    """A model's files of Hugging Face's libraries. All methods may raise InvalidArgument."""

    def __init__(self, files: Mapping[str, bytes]) -> None:
        self._files = files
        self._config = self._document("config.json")
        self._tokenizer = self._document("tokenizer_config.json")
        self._sentence_transformers = self._document("config_sentence_transformers.json")
        modules = files.get("modules.json", b"[]")
        self._modules = parse_documents("modules.json", modules)

    def _document(self, name: str) -> Document:
        if name not in self._files:
            return Document(name, {})
        return parse_document(name, self._files[name])

    @property
    def architectures(self) -> tuple[str, ...]:
        """Names of transformers' classes."""
        return self._config.strings("architectures")

    @property
    def is_classifier(self) -> bool:
        """True if the model gives logits of labels, one row for each text or pair."""
        return any(name.endswith(_CLASSIFIER) for name in self.architectures)

    @property
    def is_causal(self) -> bool:
        """True if a token sees only those before it, so that the last one knows the whole text."""
        return any(name.endswith(_CAUSAL) for name in self.architectures)

    @property
    def is_splade(self) -> bool:
        """True for sentence-transformers' models with weights of the vocabulary's tokens."""
        return any(_kind(module) == _SPLADE for module in self._modules)

    def check_splade(self) -> None:
        """Raise InvalidArgument for a pooling of such weights that is not SPLADE's usual one."""
        for module in self._modules:
            if _kind(module) == _SPLADE:
                document = self._document(f"{module.string('path')}/config.json")
                for key, usual in (("pooling_strategy", "max"), ("activation_function", "relu")):
                    if document.string(key) not in {"", usual}:
                        raise document.refuse(key, f"expected {usual}")

    def labels(self) -> tuple[str, ...]:
        """Return the labels by index; empty if the files are not a classifier's."""
        config = self._config
        if not config.has("id2label"):
            if not self.is_classifier:
                return ()
            count = config.count("num_labels", _DEFAULT_LABELS)
            if not 1 <= count <= MAX_LABELS:
                raise config.refuse("num_labels", f"expected 1 to {MAX_LABELS}")
            return tuple(f"LABEL_{index}" for index in range(count))
        texts = config.texts("id2label")
        labels = tuple(texts.get(str(index), "") for index in range(len(texts)))
        if not all(str(index) in texts for index in range(len(texts))):
            raise config.refuse("id2label", "expected the keys 0, 1, 2 and so on")
        return labels

    def activation(self, label_count: int) -> str:
        """Return the function that turns logits into scores: softmax, sigmoid or none."""
        config = self._config
        written = config.section("sentence_transformers").string("activation_fn")
        written = written or config.string("sbert_ce_default_activation_function")
        if written:
            name = written.rpartition(".")[2].lower()
            activation = {"sigmoid": "sigmoid", "identity": "none", "softmax": "softmax"}.get(name)
            if activation is None:
                raise config.refuse("activation_fn", "expected Sigmoid, Identity or Softmax")
            if label_count == 1 or activation != "none":
                return activation
        if label_count == 1:
            return "sigmoid"
        problem = config.string("problem_type")
        if problem not in _PROBLEMS:
            raise config.refuse(
                "problem_type", f"expected one of {', '.join(filter(None, _PROBLEMS))}"
            )
        return _PROBLEMS[problem]

    def normalizes(self) -> bool:
        """Return whether vectors get length 1, as with sentence-transformers or vLLM."""
        if not self._modules:
            return True
        kinds = [*filter((NORMALIZE, *WITH_WEIGHTS).__contains__, map(_kind, self._modules))]
        return kinds[-1:] == [NORMALIZE]

    def pooling(self) -> tuple[str, tuple[Layer, ...]]:
        """Return how vectors of tokens become one, as sentence-transformers or vLLM would.

        Layers that change the vector follow, without a last one that normalizes it.
        """
        mode = ""
        layers: list[Layer] = []
        for module in self._modules:
            kind = _kind(module)
            if kind == _POOLING and not mode and not layers:
                mode = self._pooling_mode(f"{module.string('path')}/config.json")
            elif kind == NORMALIZE or (kind in WITH_WEIGHTS and mode):
                layers.append(read_layer(kind, module.string("path"), self._files))
            elif kind not in _WITHOUT_EFFECT:
                raise module.refuse("type", _refusal(kind))
        if layers and layers[-1].kind == NORMALIZE:
            layers.pop()
        return mode or ("last" if self.is_causal else "mean"), tuple(layers)

    def _pooling_mode(self, name: str) -> str:
        if name not in self._files:
            raise InvalidArgument(f"modules.json: no file '{name}'")
        document = self._document(name)
        if not document.boolean("include_prompt", default=True) and self.prompts():
            raise document.refuse("include_prompt", "prompts cannot be left out of the pooling")
        if document.has("pooling_mode"):
            written = document.string("pooling_mode")
            modes = [mode for mode in POOLINGS if mode == written.removesuffix("token")]
        elif any(map(document.boolean, _OTHER_POOLING_MODES)):
            modes = []
        else:
            modes = [mode for key, mode in _POOLING_MODES.items() if document.boolean(key)]
        if len(modes) != 1:
            raise InvalidArgument(f"{name}: expected one of the poolings {', '.join(POOLINGS)}")
        return modes[0]

    def max_tokens(self) -> int:
        """Return the largest number of tokens of an input; 0 if no file says it."""
        config = self._config
        positions = config.count("max_position_embeddings")
        positions = max(positions - self.first_position(), 0)
        limits = [
            positions,
            self._document("sentence_bert_config.json").count("max_seq_length"),
            self._max_length(),
        ]
        return min(filter(None, limits), default=0)

    def first_position(self) -> int:
        """Return the position of a text's first token."""
        config = self._config
        if config.string("model_type") in _POSITIONS_AFTER_PADDING:
            return config.count("pad_token_id", 1) + 1
        return 0

    def _max_length(self) -> int:
        value = self._tokenizer.values.get("model_max_length")
        if isinstance(value, int | float) and 0 < value <= _MAX_LENGTH:
            return int(value)
        return 0

    def pad_id(self) -> int:
        """Return the id of the padding token; 0 if no file says it."""
        if self._config.has("pad_token_id"):
            # T5 and GPT-2 have a number below 0 or none here, which pads nothing.
            value = self._config.values["pad_token_id"]
            return value if isinstance(value, int) and 0 <= value < 1 << 31 else 0
        pad_token = self._tokenizer.values.get("pad_token")
        tokens = self._tokenizer.section("added_tokens_decoder")
        numbers = (
            int(number)
            for number in tokens.values
            if _NUMBER.fullmatch(number)
            and pad_token is not None
            and tokens.section(number).values.get("content") == pad_token
        )
        return next(numbers, 0)

    def prompts(self) -> dict[str, str]:
        """Return the texts that are put in front of inputs, by name."""
        return self._sentence_transformers.texts("prompts")

    def default_prompt(self) -> str:
        """Return the name of the prompt for calls that name none; may be empty."""
        return self._sentence_transformers.string("default_prompt_name")

    def dimensions(self) -> tuple[int, ...]:
        """Return the lengths to which vectors may be cut."""
        return self._config.counts("matryoshka_dimensions")

    def is_matryoshka(self) -> bool:
        """Return whether vectors may be cut."""
        return self._config.boolean("is_matryoshka") or bool(self.dimensions())

    def chat_template(self) -> str:
        """Return the template that turns messages into a prompt; empty if no file has one."""
        if "chat_template.jinja" in self._files:
            return self._files["chat_template.jinja"].decode(errors="replace")
        document = self._document("chat_template.json")
        if not document.has("chat_template"):
            document = self._tokenizer
        value = document.values.get("chat_template")
        if not isinstance(value, list):
            return document.string("chat_template")
        # Some have one more for calls with tools.
        named = {
            each["name"]: each["template"]
            for each in value
            if isinstance(each, dict)
            and isinstance(each.get("name"), str)
            and isinstance(each.get("template"), str)
        }
        return named.get("tool_use") or named.get("default") or ""

    def special_tokens(self) -> dict[str, str]:
        """Return the texts of special tokens by the names that templates have for them."""
        tokens = {}
        for name in _SPECIAL_TOKENS:
            value = self._tokenizer.values.get(name)
            if isinstance(value, dict):
                value = value.get("content")
            if isinstance(value, str):
                tokens[name] = value
        return tokens

    def eos_ids(self) -> frozenset[int]:
        """Return the tokens that end a text; empty if no file says them."""
        for document in (self._document("generation_config.json"), self._config):
            value = document.values.get("eos_token_id")
            if isinstance(value, list) and value:
                return frozenset(document.counts("eos_token_id"))
            if value is not None:
                return frozenset({document.count("eos_token_id")})
        return frozenset()


def _refusal(kind: str) -> str:
    if kind in _WITHOUT_GRAPH:
        return f"a model of module {kind} has no ONNX graph of its texts"
    known = ", ".join((_POOLING, NORMALIZE, *WITH_WEIGHTS))
    return f"module {kind or 'without type'} cannot be applied; known behind the graph: {known}"


def _kind(module: Document) -> str:
    return module.string("type").rpartition(".")[2]
