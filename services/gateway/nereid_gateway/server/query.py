"""Reads the query of a request's target."""

# layout: not compiled, off the hot path

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qsl

from nereid.core.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Collection

_INTEGER: Final = re.compile("[0-9]{1,20}")
# float() would also accept infinity, NaN, a leading sign and underscores.
_DECIMAL: Final = re.compile(r"[0-9]{1,20}(?:\.[0-9]{0,20})?(?:[eE][+-]?[0-9]{1,3})?")
_FLAGS: Final = {"true": True, "false": False}


class Query:
    """Fields of a query. Methods raise InvalidArgument if a value is wrong."""

    def __init__(self, target: bytes, names: Collection[str]) -> None:
        """Parse a target's query. names: the known fields, of which each may occur once."""
        _, _, text = target.partition(b"?")
        try:
            fields = parse_qsl(
                text.decode("ascii"),
                keep_blank_values=True,
                errors="strict",
                max_num_fields=len(names),
            )
        except ValueError as error:
            raise InvalidArgument(
                f"the query is malformed, or has too many fields: {error}"
            ) from error
        self._values: dict[str, str] = {}
        for name, value in fields:
            if name not in names or name in self._values:
                raise InvalidArgument(
                    f"the query may have each of {', '.join(names)} once; not '{name[:100]}'"
                )
            self._values[name] = value

    def text(self, name: str, max_characters: int) -> str:
        """Return a field's text, or an empty text if the field is absent."""
        text = self._values.get(name, "")
        if len(text) > max_characters:
            raise InvalidArgument(f"{name} has more than {max_characters} characters")
        return text

    def integer(self, name: str, default: int, most: int) -> int:
        """Return a field's integer from 0 to `most`, or the default if the field is absent."""
        text = self._values.get(name)
        if text is None:
            return default
        if _INTEGER.fullmatch(text) is None or int(text) > most:
            raise InvalidArgument(f"{name} is a number of at most {most}")
        return int(text)

    def seconds(self, name: str, default: float, most: int) -> float:
        """Return a field's seconds, above 0 and at most `most`, or the default if it is absent."""
        text = self._values.get(name)
        if not text:
            return default
        seconds = float(text) if _DECIMAL.fullmatch(text) else 0.0
        if not 0 < seconds <= most:
            raise InvalidArgument(
                f"{name} is a number of seconds above 0 and of at most {most}, such as ?{name}=30"
            )
        return seconds

    def flag(self, name: str) -> bool:
        """Return whether a field is "true". An absent field counts as false."""
        text = self._values.get(name, "false")
        if text not in _FLAGS:
            raise InvalidArgument(f"{name} is true or false")
        return _FLAGS[text]
