"""Which models a view shows, and in which order: those that failed first, then by name. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from nereid.bounded_cache import BoundedCache

if TYPE_CHECKING:
    from nereid_gateway.extras.console.look import IndexEntry
    from nereid_gateway.extras.console.queries import View

_MAX_VIEWS: Final = 256


class Page(NamedTuple):
    """What a view shows of an index."""

    entries: tuple[IndexEntry, ...]
    matched: int


class ModelPages:
    """The pages of the index that was seen last; an unchanged one is not searched again."""

    def __init__(self) -> None:
        self._index: tuple[IndexEntry, ...] = ()
        self._ordered: list[tuple[str, IndexEntry]] = []
        self._known: BoundedCache[View, Page] = BoundedCache(_MAX_VIEWS)

    def page(self, index: tuple[IndexEntry, ...], view: View) -> Page:
        """Of this index."""
        if index is not self._index:
            self._index = index
            ordered = sorted(index, key=_order)
            self._ordered = [(each.key.name.casefold(), each) for each in ordered]
            self._known = BoundedCache(_MAX_VIEWS)
        known = self._known.get(view)
        return self._known.remember(view, self._search(view)) if known is None else known

    def _search(self, view: View) -> Page:
        if view.model:
            found = [
                each
                for _, each in self._ordered
                if each.key.name == view.model and view.version in ("", each.key.version)
            ]
        else:
            found = [each for name, each in self._ordered if view.query in name]
        if view.grant is not None:
            found = [each for each in found if view.shows(each.key.name)]
        return Page(tuple(found[view.offset : view.offset + view.limit]), len(found))


def _order(entry: IndexEntry) -> tuple[bool, str, int, str]:
    version = entry.key.version
    number = int(version) if version.isdigit() else 0
    return not entry.failed, entry.key.name, number, version
