"""What --http-restricted-api and --grpc-restricted-protocol say: which parts of the API require a
certain header. Their syntax is Triton's: <category>,<category>:<header>=<value>.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from nereid_gateway.core.access.api_groups import APIS

if TYPE_CHECKING:
    from collections.abc import Iterable


class Restriction(NamedTuple):
    """The header that a category requires."""

    header: str
    value: str


def parse(text: str) -> dict[str, Restriction]:
    """The categories that one flag names, and the header that they require.

    Raises:
        ValueError: it is not of the flag's form.
    """
    names, colon, condition = text.partition(":")
    header, equals, value = condition.partition("=")
    if not (names and colon and header and equals and value):
        raise ValueError("expected <api>,<api>:<header>=<value>")
    table: dict[str, Restriction] = {}
    for name in names.split(","):
        if name not in APIS:
            raise ValueError(f"'{name}' is none of {', '.join(APIS)}")
        if name in table:
            raise ValueError(f"'{name}' is named twice")
        table[name] = Restriction(header, value)
    return table


def checked(text: str) -> str:
    """text, if it is of the flag's form; else ValueError."""
    parse(text)
    return text


def gather(texts: Iterable[str]) -> dict[str, Restriction]:
    """The restrictions of a repeated flag.

    Raises:
        ValueError: two of them name one category.
    """
    table: dict[str, Restriction] = {}
    for text in texts:
        for name, restriction in parse(text).items():
            if name in table:
                raise ValueError(f"'{name}' is restricted twice")
            table[name] = restriction
    return table
