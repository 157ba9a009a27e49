"""What a console asks for, by the query of its URL. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from nereid.core.errors import InvalidArgument
from nereid.facts.document import DEFAULT_LIMIT, MAX_LIMIT, MAX_QUERY_CHARACTERS
from nereid_gateway.server.query import Query

if TYPE_CHECKING:
    from nereid_gateway.core.access.grant import Grant

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

    @property
    def shows_all(self) -> bool:
        """Whether the viewer may see models of all names."""
        return self.grant is None or not self.grant.depends_on_model("console")

    def shows(self, name: str) -> bool:
        """Whether the viewer may see a model of this name."""
        return self.grant is None or self.grant.permits_model("console", name)


def view_of(target: bytes, grant: Grant | None = None) -> View:
    """The view that a request's target asks for.

    Raises:
        InvalidArgument: it makes no sense.
    """
    query = Query(target, _FIELDS)
    text = query.text("query", MAX_QUERY_CHARACTERS)
    model = query.text("model", _MAX_NAME_CHARACTERS)
    version = query.text("version", _MAX_DIGITS)
    if version and not (model and version.isascii() and version.isdigit()):
        raise InvalidArgument("version is a number, and says which one of a model")
    return View(
        "" if model else text.casefold(),
        query.integer("offset", 0, _MAX_OFFSET),
        query.integer("limit", DEFAULT_LIMIT, MAX_LIMIT),
        model,
        version,
        grant,
    )
