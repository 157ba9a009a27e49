"""Mapping between texts and the tensors of one model."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nereid.text.decisions import DecisionMapping
    from nereid.text.generation import Generation
    from nereid.text.layers import Layer
    from nereid.text.tensors import TextInput

EMBED: Final = "embed"
# Scores of pairs of a query and a document.
RANK: Final = "rank"
CLASSIFY: Final = "classify"
DECIDE: Final = "decide"
GENERATE: Final = "generate"
# Weights of the vocabulary's tokens for a text (SPLADE).
EMBED_SPARSE: Final = "embed_sparse"
# Pooling of logits of each token: the maximum over the tokens of log(1 + relu(logit)).
SPLADE: Final = "splade"
# Texts of files with speech.
TRANSCRIBE: Final = "transcribe"


@dataclass(frozen=True, slots=True)
class TextMapping:
    """Way in which texts become tensors of a model, and the meaning of its outputs.

    Either `ids` is set, and texts are tokenized for the model, or `text`, and the model takes text.
    """

    tasks: frozenset[str]
    ids: TextInput | None = None
    # 1 for each token. None: the model has no such input.
    mask: TextInput | None = None
    # 0 for tokens of the first text of a pair, 1 for those of the second.
    types: TextInput | None = None
    # Position of each token in its text.
    positions: TextInput | None = None
    first_position: int = 0
    # Number of tokens, from the last one, whose logits the model gives.
    logits_to_keep: TextInput | None = None
    # Takes texts, or the bytes of files with speech.
    text: TextInput | None = None
    # Output with vectors, scores, logits, or generated text; and its datatype.
    output: str = ""
    # "mean", "cls", "last", "max", or SPLADE; "" if the output has one vector for each row already.
    pooling: str = ""
    # Changes of vectors between the pooling and their normalization.
    layers: tuple[Layer, ...] = ()
    normalizes: bool = False
    # Lengths to which vectors may be cut; empty: any up to the full one if `matryoshka`.
    dimensions: tuple[int, ...] = ()
    # False: `dimensions` of a request is refused.
    matryoshka: bool = False
    # Put in front of texts. Keys: "query", "document", and any that the model names.
    prompts: Mapping[str, str] = field(default_factory=dict)
    # Key of the prompt for calls that name none; "" if they have none.
    default_prompt: str = ""
    labels: tuple[str, ...] = ()
    # "softmax", "sigmoid" or "none".
    activation: str = "softmax"
    # Longest input in tokens, with special tokens. 0: no limit is known.
    max_tokens: int = 0
    # Number of tokens that each row must have, and is padded to. 0: rows may have any number.
    fixed_tokens: int = 0
    # Path of the tokenizer below the model's directory.
    tokenizer: str = "tokenizer.json"
    pad_id: int = 0
    # The model keeps the keys and values of a sequence's tokens. Each request has only the tokens
    # that follow, but a mask for all.
    keeps_tokens: bool = False
    # Makes one text of messages; and further variables of it.
    chat_template: str = ""
    special_tokens: Mapping[str, str] = field(default_factory=dict)
    # Rows may have different numbers of tokens, which the scheduler pads or the model takes ragged.
    batches_lengths: bool = False
    # Set for models that generate.
    generation: Generation | None = None
    # Rows of a question, and probabilities of its logits. None: the model does not decide.
    decisions: DecisionMapping | None = None

    @property
    def padded_position(self) -> int:
        """Position of padding, as transformers has it."""
        return self.first_position - 1 if self.first_position else 1
