"""Parts of the API that require a header, by --http-restricted-api and --grpc-restricted-protocol.

The flags' syntax is Triton's: <category>,<category>:<header>=<value>.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from nereid_gateway.core.access.api_groups import APIS

if TYPE_CHECKING:
    from collections.abc import Iterable


class Restriction(NamedTuple):
    """A header and the value that a category requires of it."""

    header: str
    value: str


def parse(text: str) -> dict[str, Restriction]:
    """Return the categories that one flag names, with the header that they require.

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
    """Return text if it has the flag's form.

    Raises:
        ValueError: it does not.
    """
    parse(text)
    return text


def gather(texts: Iterable[str]) -> dict[str, Restriction]:
    """Return the restrictions of a repeated flag.

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
