"""Groups of APIs that require a header (--http-restricted-api, --grpc-restricted-protocol).

The syntax is Triton's: <category>,<category>:<header>=<value>.
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
    """Return one flag's categories with their headers, or raise ValueError."""
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
    """Return text unchanged, or raise ValueError if the flag's form is wrong."""
    parse(text)
    return text


def gather(texts: Iterable[str]) -> dict[str, Restriction]:
    """Return the restrictions of a repeated flag. A category named twice raises ValueError."""
    table: dict[str, Restriction] = {}
    for text in texts:
        for name, restriction in parse(text).items():
            if name in table:
                raise ValueError(f"'{name}' is restricted twice")
            table[name] = restriction
    return table
