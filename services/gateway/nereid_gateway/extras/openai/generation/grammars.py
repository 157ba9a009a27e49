"""JSON schemas as limits of the next token, by llguidance."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import llguidance
import llguidance.numpy
import msgspec
import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from nereid_gateway.extras.openai.errors import InvalidParameter

if TYPE_CHECKING:
    from collections.abc import Mapping

    from llguidance._lib import JsonCompileOptions
    from numpy.typing import NDArray

    from nereid_gateway.extras.openai.texts.text_models import TextModel

_MAX_SCHEMA_BYTES: Final = 256 << 10
# Half a second of a thread at most.
_MAX_GRAMMAR: Final = 100_000
# Without this, models that were not trained for JSON write spaces for ever.
_DEFAULTS: Final[JsonCompileOptions] = {"whitespace_flexible": False}


class TokenMask:
    """Tokens that may come next in one text."""

    def __init__(self, matcher: LLMatcher, vocabulary: int) -> None:
        self._matcher = matcher
        self._vocabulary = vocabulary
        self._mask = llguidance.numpy.allocate_token_bitmask(1, vocabulary)

    def apply(self, logits: NDArray[np.float32]) -> None:
        """Set the logits of tokens that may not come next to minus infinity."""
        llguidance.numpy.fill_next_token_bitmask(self._matcher, self._mask, 0)
        # Some models have more logits than tokens.
        logits[self._vocabulary :] = -np.inf
        known = logits[None, : self._vocabulary]
        llguidance.numpy.apply_token_bitmask_inplace(known, self._mask)

    def add(self, token: int) -> bool:
        """Note the next token. Return whether the text is complete."""
        self._matcher.consume_token(token)
        return bool(self._matcher.is_stopped())


class Grammars:
    """Makes masks for the texts of one model."""

    def __init__(self, model: TextModel, parameter: str) -> None:
        """Read the model's tokenizer, in a thread. Raises InvalidParameter if it is unsuitable.

        parameter: the one that needs it, which errors name.
        """
        content = model.files[model.mapping.tokenizer].decode()
        size = model.output_size
        vocabulary = self._vocabulary = size if size > 0 else model.tokenizer().vocabulary_size
        eos_ids = sorted(model.eos_ids())
        try:
            self._tokenizer = LLTokenizer(content, n_vocab=vocabulary, eos_token=eos_ids or None)
        except ValueError as error:
            raise InvalidParameter(
                parameter,
                f"'{parameter}' is not possible with the tokenizer of model '{model.name}':"
                f" {error}",
                "unsupported_parameter",
            ) from error

    def make_mask(self, schema: Mapping[str, Any], parameter: str) -> TokenMask:
        """Return the mask for one text, in a thread. Raises InvalidParameter.

        parameter: the one that the schema comes from.
        """
        written = msgspec.json.encode(schema or {"type": "object"})
        if len(written) > _MAX_SCHEMA_BYTES:
            raise _refused(parameter, f"it has {len(written)} bytes, more than {_MAX_SCHEMA_BYTES}")
        try:
            grammar = LLMatcher.grammar_from_json_schema(written.decode(), defaults=_DEFAULTS)
        except ValueError as error:
            raise _refused(parameter, str(error)) from error
        limits = LLParserLimits(max_grammar_size=_MAX_GRAMMAR, verbose_errors=False)
        matcher = LLMatcher(self._tokenizer, grammar, log_level=0, limits=limits)
        if matcher.is_error():
            raise _refused(parameter, matcher.get_error())
        return TokenMask(matcher, self._vocabulary)


def _refused(parameter: str, reason: str) -> InvalidParameter:
    return InvalidParameter(
        parameter,
        f"Invalid schema in '{parameter}': {reason[:500]}",
        "invalid_json_schema",
    )
