"""The document that `nereid explain --json` prints and that the console shows as well."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nereid.facts import document
    from nereid.facts.mesh_facts import MeshFacts
    from nereid.facts.reasons import Statement

# New releases may add fields to the document, but never change or remove fields.
FORMAT: Final = "nereid.explain/1"


def explanation(
    facts: MeshFacts, statements: Sequence[Statement], seconds: float
) -> dict[str, Any]:
    """Return the document. seconds: time between two compared looks; 0 for a single look."""
    return {
        "format": FORMAT,
        "model": facts.model,
        "problems": any(statement.problem for statement in statements),
        # If this is 0, counters count since the models were loaded.
        "seconds": seconds,
        "server_ready": facts.server_ready,
        "versions": [
            {
                "version": version.number,
                "state": version.state,
                "reason": version.reason,
                "ready": version.ready,
            }
            for version in facts.versions
        ],
        "statements": [*map(statement_document, statements)],
    }


def statement_document(statement: Statement) -> document.Statement:
    """Return one statement, as the document contains it."""
    return {
        "code": statement.code,
        "problem": statement.problem,
        "version": statement.version,
        "text": statement.text,
        "advice": statement.advice,
        "figures": statement.figures,
    }
