"""Findings about a model, and their severity."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Severity(Enum):
    """Weight of a finding.

    ERROR: the model would not be served. WARNING: its author probably meant something else.
    """

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True, slots=True)
class Finding:
    """Something to know about a model.

    code: a stable name, such as no-batching. message: for an error, the text with which loading
    fails. hint: the change to make; may be empty.
    """

    severity: Severity
    code: str
    message: str
    hint: str = ""
