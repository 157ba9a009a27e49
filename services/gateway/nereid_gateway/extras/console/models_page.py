"""The models that a view shows: failed models first, then by name, or the worst first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from nereid.bounded_cache import BoundedCache

if TYPE_CHECKING:
    from collections.abc import Callable

    from nereid.pb import nereid_pb2 as pb
    from nereid_gateway.extras.console.loads import Loads
    from nereid_gateway.extras.console.look import IndexEntry
    from nereid_gateway.extras.console.queries import View

_MAX_VIEWS: Final = 256
_NOTHING: Final = (0.0, 0.0)


class Page(NamedTuple):
    """Part of the index that a view shows. matched: the number of all entries that match."""

    entries: tuple[IndexEntry, ...]
    matched: int


class ModelPages:
    """Pages of the last index. The index is searched again only if it has changed."""

    def __init__(self) -> None:
        self._index: tuple[IndexEntry, ...] = ()
        self._ordered: list[tuple[str, IndexEntry]] = []
        # Key: a view without its part and order.
        self._known: BoundedCache[View, tuple[IndexEntry, ...]] = BoundedCache(_MAX_VIEWS)

    def page(self, index: tuple[IndexEntry, ...], loads: Loads, view: View) -> Page:
        """Return the page of this index that a view shows. loads: give the order, if asked for."""
        if index is not self._index:
            self._index = index
            self._ordered = [
                (entry.key.name.casefold(), entry) for entry in sorted(index, key=_order)
            ]
            self._known = BoundedCache(_MAX_VIEWS)
        search = view._replace(offset=0, limit=0, sort="", events=0)
        matched = self._known.get(search)
        if matched is None:
            matched = self._known.remember(search, self._search(view))
        ordered = matched
        if view.sort:
            badness = _BADNESS[view.sort]

            def key(entry: IndexEntry) -> tuple[bool, float, float]:
                load = loads.now.get(entry.key)
                first, second = _NOTHING if load is None else badness(load)
                return not entry.failed, -first, -second

            ordered = tuple(sorted(matched, key=key))
        return Page(ordered[view.offset : view.offset + view.limit], len(matched))

    def _search(self, view: View) -> tuple[IndexEntry, ...]:
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
        return tuple(matched)


def _errors(load: pb.VersionLoad) -> tuple[float, float]:
    recent = load.last_5
    lost = recent.failures + recent.refused
    return lost / max(1, lost + recent.requests), lost


_BADNESS: Final[dict[str, Callable[[pb.VersionLoad], tuple[float, float]]]] = {
    "errors": _errors,
    "p50": lambda load: (load.last_30.p50_us, 0),
    "p95": lambda load: (load.last_30.p95_us, 0),
    "p99": lambda load: (load.last_30.p99_us, 0),
    "requests": lambda load: (load.last_30.requests, 0),
    "pending": lambda load: (load.pending, 0),
}


def _order(entry: IndexEntry) -> tuple[bool, str, int, str]:
    version = entry.key.version
    number = int(version) if version.isdigit() else 0
    return not entry.failed, entry.key.name, number, version
