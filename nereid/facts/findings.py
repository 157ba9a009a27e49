"""Findings about a model, and their severity."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Severity(Enum):
    """Weight of a finding. ERROR: the model would not be served."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True, slots=True)
class Finding:
    """Something to know about a model. code is a stable name, such as no-batching.

    The message of an error is the text with which loading fails. The hint may be empty.
    """

    severity: Severity
    code: str
    message: str
    hint: str = ""
