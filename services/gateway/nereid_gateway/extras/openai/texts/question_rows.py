"""Rows of questions about an input: pairs with a statement, or text with a marker for each option.

The input is tokenized once. All functions block; work_pool.py runs them in threads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
from tokenizers import Encoding

from nereid.core.errors import InvalidArgument
from nereid.text.decisions import (
    HEAD,
    INPUT,
    OPTIONS,
    PARTS,
    MarkerRows,
    QuestionRefused,
    option_texts,
)
from nereid_gateway.extras.openai.texts.tokenizer import TokenLimit, Tokens, too_long

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from nereid.text.decisions import DecisionMapping, PairRows
    from nereid.text.questions import Question
    from nereid_gateway.extras.openai.texts.rows import Row
    from nereid_gateway.extras.openai.texts.text_models import TextModel
    from nereid_gateway.extras.openai.texts.tokenizer import TextTokenizer

    Ids = NDArray[np.int64]

_MAX_TOKENS: Final = 131_072


class QuestionRows(NamedTuple):
    """The rows of a question, or the reason why the model cannot read it."""

    rows: list[Row]
    refusal: str = ""


class QuestionEncoder:
    """Makes rows of questions about one input."""

    def __init__(self, model: TextModel, decisions: DecisionMapping, text: str) -> None:
        """Tokenize the input. Raises InvalidArgument if no question would have space beside it."""
        self._decisions = decisions
        rows = decisions.rows
        self._encoder: _MarkerEncoder | _PairEncoder = (
            _MarkerEncoder(model, rows, text)
            if isinstance(rows, MarkerRows)
            else _PairEncoder(model, rows, text)
        )

    def encode(self, questions: Sequence[Question]) -> list[QuestionRows]:
        """Return the rows of each question."""
        encoded = []
        for question in questions:
            try:
                self._decisions.check(question)
                encoded.append(QuestionRows(self._encoder.rows(question)))
            except QuestionRefused as error:
                encoded.append(QuestionRows([], error.message))
        return encoded


class _PairEncoder:
    def __init__(self, model: TextModel, pairs: PairRows, text: str) -> None:
        self._model = model
        self._pairs = pairs
        self._tokenizer = model.tokenizer()
        self._max_tokens = model.mapping.max_tokens or _MAX_TOKENS
        (self._text,) = self._tokenizer.encode_parts([text])
        if len(self._text) > self._max_tokens:
            if not pairs.truncates:
                raise too_long(len(self._text), TokenLimit(self._max_tokens), 0)
            self._text.truncate(self._max_tokens)

    def rows(self, question: Question) -> list[Row]:
        statements = self._tokenizer.encode_parts(option_texts(self._pairs.forms, question))
        return [self._row(question, statement) for statement in statements]

    def _row(self, question: Question, statement: Encoding) -> Row:
        text = self._text
        count = self._tokenizer.pair_size(text, statement)
        if count > self._max_tokens:
            left = len(text) - (count - self._max_tokens)
            if not self._pairs.truncates or left < 1:
                raise QuestionRefused(
                    f"{question.key}: with the input it has {count} tokens, but the model reads up"
                    f" to {self._max_tokens}"
                )
            text = Encoding.merge([text])
            text.truncate(left)
        pair = self._tokenizer.join_pair(text, statement)
        return self._model.token_row(Tokens(pair.ids, pair.type_ids))


class _MarkerEncoder:
    def __init__(self, model: TextModel, markers: MarkerRows, text: str) -> None:
        self._model = model
        self._markers = markers
        self._tokenizer = model.tokenizer()
        self._special = {
            role: np.array([_token_id(self._tokenizer, token)])
            for role, token in markers.tokens.items()
        }
        (self._text,) = self._ids([markers.clean(text, "input")])
        if markers.is_strict and len(self._text) > markers.max_tokens:
            raise too_long(len(self._text), TokenLimit(markers.max_tokens), 0)

    def rows(self, question: Question) -> list[Row]:
        markers = self._markers
        key = question.key
        head_text = markers.clean(markers.head_text(question), key)
        texts = [markers.clean(text, key) for text in option_texts(markers.forms, question)]
        head, *options = self._ids([head_text, *(markers.prefix + text for text in texts)])
        head, options = self._fit(question, head, options)
        special = sum(name not in PARTS for name in markers.layout)
        used = len(head) + sum(map(len, options)) + special
        text = self._cut_text(question, markers.max_tokens - used)
        parts = {HEAD: [head], OPTIONS: options, INPUT: [text]}
        pieces: list[Ids] = []
        positions: list[int] = []
        size = 0
        for name in markers.layout:
            for piece in parts.get(name) or [self._special[name]]:
                if name == OPTIONS:
                    positions.append(size)
                pieces.append(piece)
                size += len(piece)
        ids = np.concatenate(pieces)[: markers.max_tokens]
        if positions[-1] >= len(ids):
            raise QuestionRefused(f"{key}: its options do not fit into the model's input")
        return [self._row(ids, positions, markers.type_ids[question.type])]

    def _fit(self, question: Question, head: Ids, options: list[Ids]) -> tuple[Ids, list[Ids]]:
        """Return the head and the options, each with its marker, as far as there is space."""
        markers = self._markers
        longest = max(map(len, options))
        if markers.is_strict and longest > markers.max_option:
            raise QuestionRefused(
                f"{question.key}: an option has {longest} tokens, but the model reads up to"
                f" {markers.max_option}"
            )
        marker = self._special["marker"]
        marked = [np.concatenate([marker, option[: markers.max_option]]) for option in options]
        space = markers.max_head - sum(map(len, marked))
        if space < markers.reserve:
            share = max(markers.min_option, (markers.max_head - markers.reserve) // len(marked))
            marked = [option[:share] for option in marked]
            space = markers.max_head - sum(map(len, marked))
        is_cut = sum(map(len, marked)) < sum(map(len, options)) + len(options)
        if markers.is_strict and (is_cut or len(head) > space):
            raise QuestionRefused(
                f"{question.key}: it has more tokens with its options than the model's"
                f" {markers.max_head}"
            )
        return head[: max(markers.min_head, space)], marked

    def _cut_text(self, question: Question, space: int) -> Ids:
        count = len(self._text)
        if self._markers.is_strict and (space < 1 or count > space):
            raise QuestionRefused(
                f"{question.key}: the input has {count} tokens, but the model reads up to"
                f" {max(space, 0)} beside this question"
            )
        return self._text[: max(space, 0)]

    def _row(self, ids: Ids, positions: list[int], question_type: int) -> Row:
        markers = self._markers
        further = [
            (markers.positions, positions),
            (markers.mask, [1] * len(positions)),
            (markers.type, [question_type]),
        ]
        return self._model.token_row(Tokens(ids), further)

    def _ids(self, texts: Sequence[str]) -> list[Ids]:
        return [np.array(each.ids, np.int64) for each in self._tokenizer.encode_parts(texts)]


def _token_id(tokenizer: TextTokenizer, token: str) -> int:
    number = tokenizer.token_id(token)
    if number is None:
        raise InvalidArgument(f"the model's tokenizer has no token '{token[:64]}'")
    return number
