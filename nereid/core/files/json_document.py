"""Parser of JSON documents that servers, even untrusted ones, send to tools."""

from __future__ import annotations

import json
from typing import Any, Final

# Ten times the document for a mesh of 10,000 models. A parsed value may take twenty times its text.
MAX_BYTES: Final = 16 << 20
MAX_ERROR_BYTES: Final = 1 << 16


def parse_document(body: bytes) -> Any:
    """Return the value of a JSON body. Raises ValueError, also for too deep or long JSON."""
    if len(body) > MAX_BYTES:
        raise ValueError(f"more than {MAX_BYTES} bytes")
    try:
        return json.loads(body)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def error_text(body: bytes) -> str:
    """Return the error message that a response body contains."""
    try:
        document = parse_document(body)
    except ValueError:
        document = None
    if isinstance(document, dict) and "error" in document:
        return str(document["error"])
    return body[:200].decode("utf-8", "replace").strip()
