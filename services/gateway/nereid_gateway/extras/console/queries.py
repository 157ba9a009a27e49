"""Views that consoles ask for by the query of their URL."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from nereid.core.errors import InvalidArgument
from nereid.facts.document import DEFAULT_LIMIT, MAX_EVENTS, MAX_LIMIT, MAX_QUERY_CHARACTERS
from nereid_gateway.server.query import Query

if TYPE_CHECKING:
    from nereid_gateway.core.access.grant import Grant

_FIELDS: Final = ("query", "offset", "limit", "model", "version", "sort", "events")
# Orders of models, the worst first.
ORDERS: Final = ("errors", "p50", "p95", "p99", "requests", "pending")
_MAX_OFFSET: Final = 10_000_000
_MAX_DIGITS: Final = 20
# A name is part of a path, which has a maximum length.
_MAX_NAME_CHARACTERS: Final = 1024


class View(NamedTuple):
    """Choice of models for a console. Documents are encoded once for equal views.

    With `model`, the view shows one model with details, or one `version` of it. Without `model`,
    the view shows all models with `query` in their names, without regard to case. `grant`: None if
    the viewer may see all models. `sort`: the order, the worst first; empty: by name.
    """

    query: str = ""
    offset: int = 0
    limit: int = DEFAULT_LIMIT
    model: str = ""
    version: str = ""
    grant: Grant | None = None
    sort: str = ""
    # Maximum number of events, the last ones.
    events: int = 0

    @property
    def shows_all(self) -> bool:
        """True if the viewer may see all models."""
        return self.grant is None or not self.grant.depends_on_model("console")

    def shows(self, name: str) -> bool:
        """Return whether the viewer may see the model with this name."""
        return self.grant is None or self.grant.permits_model("console", name)


def view_of(target: bytes, grant: Grant | None = None) -> View:
    """Return the view that a target asks for. Raises InvalidArgument if the query is wrong."""
    query = Query(target, _FIELDS)
    text = query.text("query", MAX_QUERY_CHARACTERS)
    model = query.text("model", _MAX_NAME_CHARACTERS)
    version = query.text("version", _MAX_DIGITS)
    if version and not (model and version.isascii() and version.isdigit()):
        raise InvalidArgument("version is a number, and says which one of a model")
    sort = query.text("sort", _MAX_DIGITS)
    if sort and sort not in ORDERS:
        raise InvalidArgument(f"sort is one of {', '.join(ORDERS)}")
    return View(
        "" if model else text.casefold(),
        query.integer("offset", 0, _MAX_OFFSET),
        query.integer("limit", DEFAULT_LIMIT, MAX_LIMIT),
        model,
        version,
        grant,
        sort,
        query.integer("events", 0, MAX_EVENTS),
    )
