"""What a console asks for, by the query of its URL. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import parse_qsl

from nereid.core.errors import InvalidArgument
from nereid.facts.document import DEFAULT_LIMIT, MAX_LIMIT, MAX_QUERY_CHARACTERS

if TYPE_CHECKING:
    from nereid.services.gateway.auth.grant import Grant

_FIELDS: Final = ("query", "offset", "limit", "model", "version")
_MAX_OFFSET: Final = 10_000_000
_MAX_DIGITS: Final = 20
# Names of models are paths' parts.
_MAX_NAME_CHARACTERS: Final = 1024


class View(NamedTuple):
    """The part of the models that a console shows; equal views are encoded once.

    model: that one alone, with details, and version of it; empty: all that have query in their
    names, in any case. grant: what the viewer may do; None: everything.
    """

    query: str = ""
    offset: int = 0
    limit: int = DEFAULT_LIMIT
    model: str = ""
    version: str = ""
    grant: Grant | None = None

    def shows(self, name: str) -> bool:
        """Whether the viewer may see a model of this name."""
        return self.grant is None or self.grant.permits_model("console", name)


def view_of(target: bytes, grant: Grant | None = None) -> View:
    """The view that a request's target asks for.

    Raises:
        InvalidArgument: it makes no sense.
    """
    _, _, text = target.partition(b"?")
    try:
        fields = parse_qsl(
            text.decode("ascii"),
            keep_blank_values=True,
            errors="strict",
            max_num_fields=len(_FIELDS),
        )
    except ValueError as error:
        raise InvalidArgument(f"the query is malformed, or has too many fields: {error}") from error
    values: dict[str, str] = {}
    for name, value in fields:
        if name not in _FIELDS or name in values:
            raise InvalidArgument(
                f"the query may have each of {', '.join(_FIELDS)} once; not '{name[:100]}'"
            )
        values[name] = value
    query, model = values.get("query", ""), values.get("model", "")
    if len(query) > MAX_QUERY_CHARACTERS:
        raise InvalidArgument(f"query has more than {MAX_QUERY_CHARACTERS} characters")
    if len(model) > _MAX_NAME_CHARACTERS:
        raise InvalidArgument(f"model has more than {_MAX_NAME_CHARACTERS} characters")
    version = values.get("version", "")
    if version and not (model and _is_number(version)):
        raise InvalidArgument("version is a number, and says which one of a model")
    return View(
        "" if model else query.casefold(),
        _number(values, "offset", 0, _MAX_OFFSET),
        _number(values, "limit", DEFAULT_LIMIT, MAX_LIMIT),
        model,
        version,
        grant,
    )


def _number(values: dict[str, str], name: str, default: int, most: int) -> int:
    text = values.get(name)
    if text is None:
        return default
    if not _is_number(text) or int(text) > most:
        raise InvalidArgument(f"{name} is a number of at most {most}")
    return int(text)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS
