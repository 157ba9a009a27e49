"""JSON documents read by type. Errors name the file and the key."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeGuard, TypeVar

from nereid.core.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

_MAX_INT: Final = 1 << 31
_Item = TypeVar("_Item")


@dataclass(frozen=True, slots=True)
class Document:
    """A JSON object, and where it is from, such as "text.json: inputs"."""

    source: str
    values: Mapping[str, object]

    def refuse(self, key: str, problem: str) -> InvalidArgument:
        """Return an error about one key."""
        return InvalidArgument(f"{self.source}: {key}: {problem}")

    def refuse_unknown(self, known: Collection[str]) -> None:
        """Raise InvalidArgument if there is any other key."""
        for key in self.values:
            if key not in known:
                names = ", ".join(known)
                raise InvalidArgument(f"{self.source}: unknown key {_quoted(key)}; known: {names}")

    def has(self, key: str) -> bool:
        """Return whether the key has a value other than null."""
        return self.values.get(key) is not None

    def string(self, key: str, default: str = "") -> str:
        """Return a string."""
        value = self.values.get(key)
        if value is None:
            return default
        if not _is_text(value):
            raise self.refuse(key, "expected a string")
        return value

    def boolean(self, key: str, *, default: bool = False) -> bool:
        """Return a boolean."""
        value = self.values.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.refuse(key, "expected true or false")
        return value

    def count(self, key: str, default: int = 0) -> int:
        """Return a whole number that is not negative."""
        value = self.values.get(key)
        if value is None:
            return default
        if not _is_count(value):
            raise self.refuse(key, f"expected a whole number from 0 to {_MAX_INT - 1}")
        return value

    def strings(self, key: str) -> tuple[str, ...]:
        """Return a list of strings; empty if the key is missing."""
        return self._items(key, _is_text, "strings")

    def counts(self, key: str) -> tuple[int, ...]:
        """Return a list of whole numbers that are not negative; empty if the key is missing."""
        return self._items(key, _is_count, f"whole numbers from 0 to {_MAX_INT - 1}")

    def _items(
        self, key: str, is_item: Callable[[object], TypeGuard[_Item]], expected: str
    ) -> tuple[_Item, ...]:
        values = self.values.get(key)
        if values is None:
            return ()
        if isinstance(values, list):
            items = tuple(value for value in values if is_item(value))
            if len(items) == len(values):
                return items
        raise self.refuse(key, f"expected a list of {expected}")

    def section(self, key: str) -> Document:
        """Return an object; empty if the key is missing."""
        value = self.values.get(key)
        if value is None:
            value = {}
        if not isinstance(value, dict):
            raise self.refuse(key, "expected an object")
        return Document(f"{self.source}: {key}", value)

    def sections(self, key: str) -> list[Document]:
        """Return a list of objects; empty if the key is missing."""
        values = self.values.get(key)
        if values is None:
            return []
        if not isinstance(values, list):
            raise self.refuse(key, "expected a list of objects")
        source = f"{self.source}: {key}"
        return _documents(source, values)

    def texts(self, key: str) -> dict[str, str]:
        """Return an object of strings; empty if the key is missing."""
        section = self.section(key)
        return {name: section.string(name) for name in section.values}


def parse_document(source: str, content: bytes | str) -> Document:
    """Return a document; raise InvalidArgument if it is not a JSON object."""
    return Document(source, _object(source, _parse(source, content)))


def parse_documents(source: str, content: bytes) -> list[Document]:
    """Return the documents of a JSON list of objects; may raise InvalidArgument."""
    values = _parse(source, content)
    if not isinstance(values, list):
        raise InvalidArgument(f"{source}: expected a list")
    return _documents(source, values)


def _documents(source: str, values: list[object]) -> list[Document]:
    return [
        Document(f"{source}: {index}", _object(f"{source}: {index}", value))
        for index, value in enumerate(values)
    ]


def _parse(source: str, content: bytes | str) -> object:
    try:
        return json.loads(content)
    except UnicodeDecodeError:
        raise InvalidArgument(f"{source}: not UTF-8") from None
    except json.JSONDecodeError as error:
        raise InvalidArgument(
            f"{source}: not JSON: {error.msg} in line {error.lineno}, column {error.colno}"
        ) from None
    except (ValueError, RecursionError):
        # Numbers of thousands of digits, and lists in lists in lists.
        raise InvalidArgument(f"{source}: JSON with too long numbers or too deep lists") from None


def _object(source: str, value: object) -> dict[str, object]:
    if not isinstance(value, dict):
        raise InvalidArgument(f"{source}: expected an object")
    return value


def _is_count(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _MAX_INT


def _is_text(value: object) -> TypeGuard[str]:
    """Return whether the value is a string of Unicode: JSON may hold halves of surrogate pairs."""
    if not isinstance(value, str):
        return False
    return value.isascii() or value.encode(errors="replace").decode() == value


def _quoted(name: str) -> str:
    return f"'{ascii(name[:64])[1:-1]}'"
