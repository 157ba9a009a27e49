"""JSON schemas and calls of tools as limits of the next token, by llguidance."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import llguidance
import llguidance.numpy
import msgspec
import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from nereid_gateway.extras.openai.errors import InvalidParameter
from nereid_gateway.extras.openai.generation.tool_calls import CALL_FORMS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from llguidance._lib import JsonCompileOptions
    from numpy.typing import NDArray

    from nereid_gateway.extras.openai.texts.text_models import TextModel

_MAX_SCHEMA_BYTES: Final = 256 << 10
# Half a second of a thread at most.
_MAX_GRAMMAR: Final = 100_000
_PARAMETER: Final = "response_format"
_TOOLS: Final = "tools"
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

    def __init__(self, model: TextModel) -> None:
        """Read the model's tokenizer, in a thread. Raises InvalidParameter if it is unsuitable."""
        self._model = model
        content = model.files[model.mapping.tokenizer].decode()
        size = model.output_size
        vocabulary = self._vocabulary = size if size > 0 else model.tokenizer().vocabulary_size
        eos_ids = sorted(model.eos_ids())
        try:
            self._tokenizer = LLTokenizer(content, n_vocab=vocabulary, eos_token=eos_ids or None)
        except ValueError as error:
            raise InvalidParameter(
                _PARAMETER,
                f"'{_PARAMETER}' is not possible with the tokenizer of model '{model.name}':"
                f" {error}",
                "unsupported_parameter",
            ) from error

    def make_mask(self, schema: Mapping[str, Any]) -> TokenMask:
        """Return the mask for one text, in a thread. Raises InvalidParameter."""
        written = msgspec.json.encode(schema or {"type": "object"})
        if len(written) > _MAX_SCHEMA_BYTES:
            raise _refused(f"it has {len(written)} bytes, more than {_MAX_SCHEMA_BYTES}")
        try:
            grammar = LLMatcher.grammar_from_json_schema(written.decode(), defaults=_DEFAULTS)
        except ValueError as error:
            raise _refused(str(error)) from error
        return self._mask_of(grammar, _PARAMETER)

    def make_call_mask(self, tools: Sequence[Mapping[str, Any]]) -> TokenMask:
        """Return the mask for a text that calls one of these tools, in a thread.

        tools: as chat templates take them. Raises InvalidParameter.
        """
        form = CALL_FORMS[self._model.generation.tool_parser]
        rules = [f"start: {' | '.join(f'call{index}' for index in range(len(tools)))}"]
        size = 0
        for index, tool in enumerate(tools):
            function = tool["function"]
            schema = function["parameters"]
            if not isinstance(schema, dict):
                raise _refused("expected objects", _TOOLS)
            schema = {"type": "object", **schema, "x-guidance": _DEFAULTS}
            written = msgspec.json.encode(schema).decode()
            size += len(written)
            if size > _MAX_SCHEMA_BYTES:
                raise _refused(f"they have more than {_MAX_SCHEMA_BYTES} bytes", _TOOLS)
            name = f'{{"name": "{function["name"]}", "{form.arguments}": '
            before, after = _text(form.before + name), _text("}" + form.after)
            marker = self._marker(form.marker)
            rules += [
                f"call{index}: {marker} {before} arguments{index} {after}",
                f"arguments{index}: %json {written}",
            ]
        return self._mask_of(LLMatcher.grammar_from_lark("\n".join(rules)), _TOOLS)

    def _marker(self, marker: str) -> str:
        """Return the rule of a text that may be a special token, which no text matches."""
        tokenizer = self._model.tokenizer()
        token = tokenizer.id_of(marker)
        if token is not None and token in tokenizer.special_ids():
            return f"<[{token}]>"
        return _text(marker) if marker else ""

    def _mask_of(self, grammar: str, parameter: str) -> TokenMask:
        limits = LLParserLimits(max_grammar_size=_MAX_GRAMMAR, verbose_errors=False)
        matcher = LLMatcher(self._tokenizer, grammar, log_level=0, limits=limits)
        if matcher.is_error():
            raise _refused(matcher.get_error(), parameter)
        return TokenMask(matcher, self._vocabulary)


def _text(text: str) -> str:
    return msgspec.json.encode(text).decode()


def _refused(reason: str, parameter: str = _PARAMETER) -> InvalidParameter:
    return InvalidParameter(
        parameter,
        f"Invalid schema in '{parameter}': {reason[:500]}",
        "invalid_json_schema",
    )
