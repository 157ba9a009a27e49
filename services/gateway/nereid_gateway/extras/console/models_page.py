"""The models that a view shows: first failed models, then the others by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from nereid.bounded_cache import BoundedCache

if TYPE_CHECKING:
    from nereid_gateway.extras.console.look import IndexEntry
    from nereid_gateway.extras.console.queries import View

_MAX_VIEWS: Final = 256


class Page(NamedTuple):
    """Part of the index that a view shows. matched: the number of all entries that match."""

    entries: tuple[IndexEntry, ...]
    matched: int


class ModelPages:
    """Pages of the last index. The index is searched again only if it has changed."""

    def __init__(self) -> None:
        self._index: tuple[IndexEntry, ...] = ()
        self._ordered: list[tuple[str, IndexEntry]] = []
        self._known: BoundedCache[View, Page] = BoundedCache(_MAX_VIEWS)

    def page(self, index: tuple[IndexEntry, ...], view: View) -> Page:
        """Return the page of this index that a view shows."""
        if index is not self._index:
            self._index = index
            ordered = sorted(index, key=_order)
            self._ordered = [(entry.key.name.casefold(), entry) for entry in ordered]
            self._known = BoundedCache(_MAX_VIEWS)
        known = self._known.get(view)
        return self._known.remember(view, self._search(view)) if known is None else known

    def _search(self, view: View) -> Page:
        if view.model:
            matched = [
                entry
                for _, entry in self._ordered
                if entry.key.name == view.model and view.version in ("", entry.key.version)
            ]
        else:
            matched = [entry for name, entry in self._ordered if view.query in name]
        if view.grant is not None:
            matched = [entry for entry in matched if view.shows(entry.key.name)]
        return Page(tuple(matched[view.offset : view.offset + view.limit]), len(matched))


def _order(entry: IndexEntry) -> tuple[bool, str, int, str]:
    version = entry.key.version
    number = int(version) if version.isdigit() else 0
    return not entry.failed, entry.key.name, number, version
