"""Findings about a model, and how much each of them matters."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Severity(Enum):
    """Weight of a finding.

    ERROR: the model would not be served. WARNING: its author probably meant something else. NOTE:
    neither.
    """

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing to know about a model.

    code: a stable name for programs, such as no-batching. message: for an error, the text that
    loading gives. hint: the change to make; empty: none in particular.
    """

    severity: Severity
    code: str
    message: str
    hint: str = ""
