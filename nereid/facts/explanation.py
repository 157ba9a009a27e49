"""What `nereid explain --json` prints of a model, which the console shows as well. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nereid.facts import document
    from nereid.facts.mesh_facts import MeshFacts
    from nereid.facts.reasons import Statement

# Fields are only ever added to it.
FORMAT: Final = "nereid.explain/1"


def explanation(
    facts: MeshFacts, statements: Sequence[Statement], seconds: float
) -> dict[str, Any]:
    """The document. seconds: between the two looks that counters were compared of; 0: one look."""
    return {
        "format": FORMAT,
        "model": facts.model,
        "problems": any(each.problem for each in statements),
        # 0: counters count since the models were loaded.
        "seconds": seconds,
        "server_ready": facts.server_ready,
        "versions": [
            {
                "version": each.number,
                "state": each.state,
                "reason": each.reason,
                "ready": each.ready,
            }
            for each in facts.versions
        ],
        "statements": [*map(statement_document, statements)],
    }


def statement_document(statement: Statement) -> document.Statement:
    """One statement in it."""
    return {
        "code": statement.code,
        "problem": statement.problem,
        "version": statement.version,
        "text": statement.text,
        "advice": statement.advice,
        "figures": statement.figures,
    }
