"""JSON for the consoles: whole documents, and patches. Views share encoded parts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import orjson

from nereid.facts.reasons import HELD_REQUESTS
from nereid_gateway.extras.console.merge_patch import merge_patch

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nereid.facts import document
    from nereid_gateway.extras.console.loads import Key
    from nereid_gateway.extras.console.models_page import Page
    from nereid_gateway.extras.console.queries import View

# A client may have each of these rights for only some models.
_OF_MODELS: Final = (
    "inference",
    "metadata",
    "model-config",
    "model-repository",
    "statistics",
    "trace",
)


class RowKey(NamedTuple):
    """Row of the document: a version of a model, as a certain viewer may see it.

    may: the viewer's rights for the model, or None if the document's permissions apply. of_all:
    True if the row also has statements about all models together.
    """

    key: Key
    may: tuple[str, ...] | None
    of_all: bool

    @property
    def name(self) -> str:
        """Name of the row in the document."""
        return f"{self.key.name}/{self.key.version}"


class ViewDocument(NamedTuple):
    """Parts of a document that belong to one view: its rows, and its own sections."""

    # Section `models` of the document, without its keys and rows.
    models: dict[str, Any]
    rows: tuple[RowKey, ...]
    # These sections are added to the shared ones or replace them. None removes a shared section.
    own: dict[str, Any]


class LastSentParts(NamedTuple):
    """The parts that were last sent to synced consoles."""

    shared: dict[str, Any]
    rows: Mapping[Key, document.Model]
    documents: Mapping[View, ViewDocument]


NOTHING_SENT: Final = LastSentParts({}, {}, {})


def view_document(view: View, page: Page, total: int, own: dict[str, Any]) -> ViewDocument:
    """Return the document of a view. total: the number of models. own: the view's sections."""
    models = {
        "query": view.query,
        "offset": view.offset,
        "limit": view.limit,
        "matched": page.matched,
        "total": total,
    }
    of_all = view.shows_all
    rows = (RowKey(entry.key, _may(view, entry.key.name), of_all) for entry in page.entries)
    return ViewDocument(models, tuple(rows), own)


def _may(view: View, model: str) -> tuple[str, ...] | None:
    if view.grant is None:
        return None
    return tuple(api for api in _OF_MODELS if view.grant.permits_model(api, model))


class Encoder:
    """Encodes the documents of one look at the mesh, each part only once."""

    def __init__(
        self, shared: dict[str, Any], rows: Mapping[Key, document.Model], last: LastSentParts
    ) -> None:
        """Encode these sections and rows. last: what consoles have, and patches update."""
        self._shared = shared
        self._rows = rows
        self._last = last
        self._snapshot: dict[str, orjson.Fragment] | None = None
        self._patch: dict[str, orjson.Fragment] | None = None
        self._whole_rows: dict[RowKey, orjson.Fragment] = {}
        # Value: None for a row without changes.
        self._row_patches: dict[RowKey, orjson.Fragment | None] = {}
        self._patches: dict[View, bytes] = {}

    def last_sent_parts(self, documents: Mapping[View, ViewDocument]) -> LastSentParts:
        """Return the documents as sent. Call this once all consoles have them."""
        return LastSentParts(self._shared, self._rows, documents)

    def snapshot(self, shown: ViewDocument, permissions: document.Permissions) -> bytes:
        """Return the whole document of a view."""
        if self._snapshot is None:
            self._snapshot = {
                name: orjson.Fragment(orjson.dumps(value)) for name, value in self._shared.items()
            }
        models = {
            **shown.models,
            "keys": [row.name for row in shown.rows],
            "rows": {row.name: self._whole_row(row) for row in shown.rows},
        }
        document = {**self._snapshot, "permissions": permissions, "models": models, **shown.own}
        return orjson.dumps({name: part for name, part in document.items() if part is not None})

    def patch(self, view: View, shown: ViewDocument) -> bytes:
        """Return the patch that updates a view's last document, which must have been sent."""
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
            models["keys"] = [row.name for row in shown.rows]
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
        changed: dict[str, orjson.Fragment | None] = {}
        earlier = dict.fromkeys(before.rows)
        for row in shown.rows:
            if row not in earlier:
                changed[row.name] = self._whole_row(row)
            elif (patch := self._row_patch(row)) is not None:
                changed[row.name] = patch
        names = {row.name for row in shown.rows}
        changed.update({row.name: None for row in before.rows if row.name not in names})
        return changed

    def _whole_row(self, row: RowKey) -> orjson.Fragment:
        known = self._whole_rows.get(row)
        if known is None:
            described = _row(row, self._rows)
            if row.may is not None:
                described["may"] = row.may
            known = self._whole_rows[row] = orjson.Fragment(orjson.dumps(described))
        return known

    def _row_patch(self, row: RowKey) -> orjson.Fragment | None:
        if row not in self._row_patches:
            changes = {}
            if self._rows[row.key] is not self._last.rows[row.key]:
                changes = merge_patch(_row(row, self._last.rows), _row(row, self._rows))
            self._row_patches[row] = orjson.Fragment(orjson.dumps(changes)) if changes else None
        return self._row_patches[row]


def _row(row: RowKey, rows: Mapping[Key, document.Model]) -> dict[str, Any]:
    described: dict[str, Any] = dict(rows[row.key])
    if not row.of_all:
        statements = described["statements"]
        described["statements"] = [
            statement for statement in statements if statement["code"] != HELD_REQUESTS
        ]
    return described
