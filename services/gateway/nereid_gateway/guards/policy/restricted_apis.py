"""Groups of APIs that require a header (--http-restricted-api and --grpc-restricted-protocol).

The syntax of the flags is Triton's: <category>,<category>:<header>=<value>.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from nereid_gateway.core.access.api_groups import APIS

if TYPE_CHECKING:
    from collections.abc import Iterable


class Restriction(NamedTuple):
    """Header that a category of APIs requires, and the required value."""

    header: str
    value: str


def parse(text: str) -> dict[str, Restriction]:
    """Return the categories that one flag names, each with the header that it requires.

    Raises:
        ValueError: the text does not have the flag's form.
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
    """Return text unchanged if it has the form of the flag.

    Raises:
        ValueError: text does not have the form of the flag.
    """
    parse(text)
    return text


def gather(texts: Iterable[str]) -> dict[str, Restriction]:
    """Return the restrictions that all texts of a repeated flag specify.

    Raises:
        ValueError: two of the texts name the same category.
    """
    table: dict[str, Restriction] = {}
    for text in texts:
        for name, restriction in parse(text).items():
            if name in table:
                raise ValueError(f"'{name}' is restricted twice")
            table[name] = restriction
    return table
