"""Fields of a text of protobuf's, with the lines on which they stand.

protobuf's parser says neither where a field stands nor whether a field with its default was set.
The text must be one that protobuf's parser has accepted.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from google.protobuf.text_encoding import CUnescape

if TYPE_CHECKING:
    from collections.abc import Iterator

_TOKEN: Final = re.compile(
    r"""
    (?P<space>\s+|\#[^\n]*)
    | (?P<string>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')
    | [-{}<>\[\]:;,]
    | [^\s#"'{}<>\[\]:;,-][^\s#"'{}<>\[\]:;,]*
    """,
    re.DOTALL | re.VERBOSE,
)
_CLOSING: Final = frozenset("}>")


@dataclass(frozen=True, slots=True)
class TextValue:
    """One value of a field. fields: of a message. tokens: of another value, as in the text."""

    line: int
    fields: tuple[TextField, ...] = ()
    tokens: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """The value of a string."""
        return b"".join(CUnescape(token[1:-1]) for token in self.tokens).decode()


@dataclass(frozen=True, slots=True)
class TextField:
    """One occurrence of a field. A list has several values, or none."""

    name: str
    line: int
    values: list[TextValue] = field(default_factory=list)


def text_fields(text: str) -> tuple[TextField, ...]:
    """Return the fields of a message's text in their order."""
    return _Reader(text).message()


class _Reader:
    def __init__(self, text: str) -> None:
        self._tokens = _tokens(text)
        self._line = 0
        self._token = ""
        self._is_string = False
        self._advance()

    def message(self) -> tuple[TextField, ...]:
        """Read fields up to a closing bracket, or the end."""
        fields = []
        while self._token and self._token not in _CLOSING:
            read = TextField(self._token, self._line)
            self._advance()
            self._skip(":")
            if self._skip("["):
                while not self._skip("]"):
                    read.values.append(self._value())
                    self._skip(",")
            else:
                read.values.append(self._value())
            fields.append(read)
            while self._token in (",", ";"):
                self._advance()
        return tuple(fields)

    def _value(self) -> TextValue:
        line = self._line
        if self._skip("{") or self._skip("<"):
            fields = self.message()
            self._advance()
            return TextValue(line, fields)
        tokens = [self._token]
        is_string = self._is_string
        self._advance()
        # Strings that follow each other are one value. A minus is a token of its own.
        while (is_string and self._is_string) or tokens[-1] == "-":
            tokens.append(self._token)
            self._advance()
        return TextValue(line, (), tuple(tokens))

    def _skip(self, mark: str) -> bool:
        if self._token != mark or self._is_string:
            return False
        self._advance()
        return True

    def _advance(self) -> None:
        self._token, self._line, self._is_string = next(self._tokens, ("", self._line, False))


def _tokens(text: str) -> Iterator[tuple[str, int, bool]]:
    line = 1
    for match in _TOKEN.finditer(text):
        if match["space"] is None:
            yield match[0], line, match["string"] is not None
        line += match[0].count("\n")
