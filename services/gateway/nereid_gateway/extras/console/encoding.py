"""The JSON that consoles are sent: whole documents, and patches of them. Pure.

Consoles with different views share what is the same in them: each section, and each row, is encoded
once for all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import orjson

from nereid.facts.reasons import HELD_REQUESTS
from nereid_gateway.extras.console.merge_patch import merge_patch

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nereid.facts import document
    from nereid_gateway.extras.console.look import Key
    from nereid_gateway.extras.console.models_page import Page
    from nereid_gateway.extras.console.queries import View

# Rights that may be given for some models alone, and that the console has a use for.
_OF_MODELS: Final = (
    "inference",
    "metadata",
    "model-config",
    "model-repository",
    "statistics",
    "trace",
)


class RowKey(NamedTuple):
    """A version, and what the viewer may do with it; None: what its permissions say. of_all: with
    what is counted for all models.
    """

    key: Key
    may: tuple[str, ...] | None
    of_all: bool

    @property
    def name(self) -> str:
        """In the document."""
        return f"{self.key.name}/{self.key.version}"


class ViewDocument(NamedTuple):
    """What one view has that others may not have: its page, and sections of its own."""

    # `models` of the document, but for its keys and rows.
    models: dict[str, Any]
    rows: tuple[RowKey, ...]
    # In place of the shared ones, or beside them; None: it has none.
    own: dict[str, Any]


class Sent(NamedTuple):
    """What consoles that are in step have been sent last."""

    shared: dict[str, Any]
    rows: Mapping[Key, document.Model]
    documents: Mapping[View, ViewDocument]


NOTHING_SENT: Final = Sent({}, {}, {})


def view_document(view: View, page: Page, total: int, own: dict[str, Any]) -> ViewDocument:
    """Of the page that a view shows."""
    models = {
        "query": view.query,
        "offset": view.offset,
        "limit": view.limit,
        "matched": page.matched,
        "total": total,
    }
    of_all = view.shows_all
    rows = (RowKey(each.key, _may(view, each.key.name), of_all) for each in page.entries)
    return ViewDocument(models, tuple(rows), own)


def _may(view: View, model: str) -> tuple[str, ...] | None:
    if view.grant is None:
        return None
    return tuple(api for api in _OF_MODELS if view.grant.permits_model(api, model))


class Encoder:
    """Encodes what one look says, each part once."""

    def __init__(
        self, shared: dict[str, Any], rows: Mapping[Key, document.Model], last: Sent
    ) -> None:
        """last: what patches are for."""
        self._shared = shared
        self._rows = rows
        self._last = last
        self._snapshot: dict[str, orjson.Fragment] | None = None
        self._patch: dict[str, orjson.Fragment] | None = None
        self._whole_rows: dict[RowKey, orjson.Fragment] = {}
        # None: it is as it was.
        self._row_patches: dict[RowKey, orjson.Fragment | None] = {}
        self._patches: dict[View, bytes] = {}

    def sent(self, documents: Mapping[View, ViewDocument]) -> Sent:
        """What has been sent, once all of it has."""
        return Sent(self._shared, self._rows, documents)

    def snapshot(self, shown: ViewDocument, permissions: document.Permissions) -> bytes:
        """A whole document."""
        if self._snapshot is None:
            self._snapshot = {
                name: orjson.Fragment(orjson.dumps(value)) for name, value in self._shared.items()
            }
        models = {
            **shown.models,
            "keys": [each.name for each in shown.rows],
            "rows": {each.name: self._whole_row(each) for each in shown.rows},
        }
        document = {**self._snapshot, "permissions": permissions, "models": models, **shown.own}
        return orjson.dumps({name: each for name, each in document.items() if each is not None})

    def patch(self, view: View, shown: ViewDocument) -> bytes:
        """What makes it of the last one with this view, which there must be."""
        known = self._patches.get(view)
        if known is None:
            known = self._patches[view] = self._patch_of(shown, self._last.documents[view])
        return known

    def _patch_of(self, shown: ViewDocument, before: ViewDocument) -> bytes:
        if self._patch is None:
            changes = merge_patch(self._last.shared, self._shared)
            self._patch = {
                name: orjson.Fragment(orjson.dumps(value)) for name, value in changes.items()
            }
        models = merge_patch(before.models, shown.models)
        if shown.rows != before.rows:
            models["keys"] = [each.name for each in shown.rows]
        rows = self._changed_rows(shown, before)
        if rows:
            models["rows"] = rows
        patch: dict[str, Any] = {
            name: value for name, value in self._patch.items() if name not in shown.own
        }
        if models:
            patch["models"] = models
        return orjson.dumps(patch | merge_patch(before.own, shown.own))

    def _changed_rows(
        self, shown: ViewDocument, before: ViewDocument
    ) -> dict[str, orjson.Fragment | None]:
        rows: dict[str, orjson.Fragment | None] = {}
        had = dict.fromkeys(before.rows)
        for each in shown.rows:
            if each not in had:
                rows[each.name] = self._whole_row(each)
            elif (patch := self._row_patch(each)) is not None:
                rows[each.name] = patch
        names = {each.name for each in shown.rows}
        rows.update({each.name: None for each in before.rows if each.name not in names})
        return rows

    def _whole_row(self, row: RowKey) -> orjson.Fragment:
        known = self._whole_rows.get(row)
        if known is None:
            found = _row(row, self._rows)
            if row.may is not None:
                found["may"] = row.may
            known = self._whole_rows[row] = orjson.Fragment(orjson.dumps(found))
        return known

    def _row_patch(self, row: RowKey) -> orjson.Fragment | None:
        if row not in self._row_patches:
            changes = {}
            if self._rows[row.key] is not self._last.rows[row.key]:
                changes = merge_patch(_row(row, self._last.rows), _row(row, self._rows))
            self._row_patches[row] = orjson.Fragment(orjson.dumps(changes)) if changes else None
        return self._row_patches[row]


def _row(row: RowKey, rows: Mapping[Key, document.Model]) -> dict[str, Any]:
    """A row as its viewer may see it."""
    found: dict[str, Any] = dict(rows[row.key])
    if not row.of_all:
        statements = found["statements"]
        found["statements"] = [each for each in statements if each["code"] != HELD_REQUESTS]
    return found
