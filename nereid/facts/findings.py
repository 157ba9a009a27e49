"""What is to be known of a model: a finding, and how much it matters."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Severity(Enum):
    """ERROR: it would not be served; WARNING: probably not what its author meant; NOTE: neither."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing to know about a model.

    code: a stable name for programs, such as no-batching. message: for an error, the text that
    loading gives. hint: what to change; empty: nothing in particular.
    """

    severity: Severity
    code: str
    message: str
    hint: str = ""
