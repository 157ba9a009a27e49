"""Tokens of texts: counted, checked against the model's limit, truncated where this is asked for.

All functions block; work_pool.py runs them in threads. The library releases the interpreter's lock.
"""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

from nereid.core.errors import InvalidArgument
from nereid_gateway.extras.openai.errors import TOO_LONG, InvalidParameter

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np
    from numpy.typing import NDArray
    from tokenizers import Encoding

    # A text, or a pair of texts for a ranker.
    Text = str | tuple[str, str]

# The library's own threads serve one caller after another: two texts on the event loop waited a
# second for those of another client.
os.environ["TOKENIZERS_PARALLELISM"] = "false"

# Characters of a text. Tokenizing takes about a microsecond for each, and cannot be interrupted.
_MAX_CHARACTERS: Final = 1 << 20


class TokenLimit(NamedTuple):
    """Limit of the tokens of a text, special tokens included, and what happens beyond it."""

    # 0: there is none.
    max_tokens: int
    truncates: bool = False
    # "right" keeps the beginning of a text, "left" its end.
    side: str = "right"
    # The parameter that errors name.
    parameter: str = "input"


class Tokens(NamedTuple):
    """Tokens of a row. types: 1 for tokens of the second text of a pair, or None if all are 0."""

    ids: Sequence[int] | NDArray[np.int64]
    types: Sequence[int] | None = None


class TextTokenizer:
    """A model's tokenizer. It may be used in several threads."""

    def __init__(self, content: bytes) -> None:
        """Read a tokenizer.json. Raises InvalidArgument."""
        try:
            self._tokenizer = Tokenizer.from_buffer(content)
        except Exception as error:  # The library raises Exception itself.
            raise InvalidArgument(f"the tokenizer cannot be read: {error}") from error
        # Both may be set in the file. Limits are the caller's, and padding is the scheduler's.
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self.vocabulary_size = self._tokenizer.get_vocab_size(with_added_tokens=True)

    def tokenize(
        self, texts: Sequence[Text], limit: TokenLimit, *, special: bool = True, first: int = 0
    ) -> list[Tokens]:
        """Return the tokens of texts. first: the number of the first text, for errors.

        Raises InvalidParameter for a text beyond the limit, unless it is to be truncated.
        """
        if limit.max_tokens and limit.truncates:
            encodings = self._encode_truncated(texts, limit, special=special)
        else:
            encodings = self._encode(texts, special=special)
        tokens = []
        for number, (text, encoding) in enumerate(zip(texts, encodings, strict=True), first):
            if limit.max_tokens and len(encoding) > limit.max_tokens:
                raise too_long(len(encoding), limit, number)
            types = encoding.type_ids if isinstance(text, tuple) else None
            tokens.append(Tokens(encoding.ids, types))
        return tokens

    def check_ids(self, ids: Sequence[int], limit: TokenLimit, number: int) -> Tokens:
        """Return token ids that a client sent, truncated if that is asked for."""
        if limit.max_tokens and len(ids) > limit.max_tokens:
            if not limit.truncates:
                raise too_long(len(ids), limit, number)
            end = limit.max_tokens
            ids = ids[:end] if limit.side == "right" else ids[len(ids) - end :]
        least, largest = min(ids), max(ids)
        if least < 0 or largest >= self.vocabulary_size:
            raise InvalidParameter(
                limit.parameter,
                f"token id {least if least < 0 else largest} in item {number} is not in the model's"
                f" vocabulary of {self.vocabulary_size} tokens; they must come from the model's own"
                " tokenizer.",
            )
        return Tokens(ids)

    def encode_parts(self, texts: Sequence[str]) -> list[Encoding]:
        """Return the tokens of parts of rows, without special tokens."""
        return self._encode(texts, special=False)

    def pair_size(self, first: Encoding, second: Encoding) -> int:
        """Return the number of tokens of a pair of parts."""
        return len(first) + len(second) + self._tokenizer.num_special_tokens_to_add(True)

    def join_pair(self, first: Encoding, second: Encoding) -> Encoding:
        """Return a pair of parts, with special tokens."""
        return self._tokenizer.post_process(first, second, True)

    def token_id(self, token: str) -> int | None:
        """Return the number of a token; None if there is no such token."""
        return self._tokenizer.token_to_id(token)

    def encode_with_offsets(self, text: str, *, special: bool) -> Encoding:
        """Return the tokens of one text, with their texts and places."""
        return self._checked([text]).encode_batch([text], add_special_tokens=special)[0]

    def shorten(self, text: str, max_tokens: int) -> str:
        """Return the beginning of a text that has at most so many tokens, without special ones."""
        encoding = self.encode_with_offsets(text, special=False)
        return text if len(encoding) <= max_tokens else text[: encoding.offsets[max_tokens - 1][1]]

    def decode(self, ids: Sequence[int], *, skip_special: bool) -> str:
        """Return the text of tokens; raise InvalidParameter for an unknown one."""
        self.check_ids(ids or [0], TokenLimit(0, parameter="tokens"), 0)
        return self._tokenizer.decode(ids, skip_special_tokens=skip_special)

    def decode_stream(self, *, skip_special: bool) -> Callable[[int], str | None]:
        """Return a function that returns the text of token after token, of whole characters."""
        stream = DecodeStream(skip_special_tokens=skip_special)
        return partial(stream.step, self._tokenizer)

    def text_of(self, token: int) -> str:
        """Return the text of one token, which may be a part of a character."""
        return self._tokenizer.decode([token], skip_special_tokens=False)

    def id_of(self, token: str) -> int | None:
        """Return the id of a token, or None if there is none."""
        return self._tokenizer.token_to_id(token)

    def special_ids(self) -> frozenset[int]:
        """Return the ids of special tokens."""
        added = self._tokenizer.get_added_tokens_decoder()
        return frozenset(number for number, token in added.items() if token.special)

    def _encode(self, texts: Sequence[Text], *, special: bool) -> list[Encoding]:
        tokenizer = self._checked(texts)
        try:
            # The fast form keeps no offsets.
            return tokenizer.encode_batch_fast(list(texts), add_special_tokens=special)
        except Exception as error:  # As above.
            raise InvalidArgument(f"the texts cannot be tokenized: {error}") from error

    def _checked(self, texts: Sequence[Text]) -> Tokenizer:
        for text in texts:
            for part in (text,) if isinstance(text, str) else text:
                if len(part) > _MAX_CHARACTERS:
                    raise InvalidArgument(
                        f"a text has {len(part)} characters, more than {_MAX_CHARACTERS}"
                    )
        return self._tokenizer

    def _encode_truncated(
        self, texts: Sequence[Text], limit: TokenLimit, *, special: bool
    ) -> list[Encoding]:
        """Return the tokens of texts, each tokenized once, without special ones at first."""
        parts = [part for text in texts for part in ((text,) if isinstance(text, str) else text)]
        encodings = iter(self._encode(parts, special=False))
        return [
            self._truncated(
                next(encodings),
                None if isinstance(text, str) else next(encodings),
                limit,
                special=special,
            )
            for text in texts
        ]

    def _truncated(
        self, first: Encoding, second: Encoding | None, limit: TokenLimit, *, special: bool
    ) -> Encoding:
        tokenizer = self._tokenizer
        added = tokenizer.num_special_tokens_to_add(second is not None) if special else 0
        space = max(limit.max_tokens - added, 0)
        if second is None:
            first.truncate(space, direction=limit.side)
            return tokenizer.post_process(first, None, special)
        sizes = _longest_first(len(first), len(second), space)
        first.truncate(sizes[0], direction=limit.side)
        second.truncate(sizes[1], direction=limit.side)
        return tokenizer.post_process(first, second, special)


def too_long(count: int, limit: TokenLimit, number: int) -> InvalidParameter:
    """Return the error for a text with too many tokens. number: its place in the call."""
    excess = count - limit.max_tokens
    return InvalidParameter(
        limit.parameter,
        f"This model's maximum context length is {limit.max_tokens} tokens, but item {number} of"
        f" '{limit.parameter}' has {count} tokens, {excess} too many. Shorten it, or ask for"
        " truncation.",
        TOO_LONG,
    )


def _longest_first(first: int, second: int, space: int) -> tuple[int, int]:
    """Return the lengths to which Hugging Face's tokenizers truncate a pair."""
    if first + second <= space:
        return first, second
    shorter, longer = sorted((first, second))
    longer = max(shorter, space - shorter)
    if shorter + longer > space:
        shorter = space // 2
        longer = shorter + space % 2
    return (shorter, longer) if first <= second else (longer, shorter)
