"""JSON documents that servers send to tools, with a size limit, as any server may be queried."""

from __future__ import annotations

import json
from typing import Any, Final

# Limit of a document: ten times that of a mesh of 10,000 models. A value may take twenty times its
# text in memory.
MAX_BYTES: Final = 16 << 20
MAX_ERROR_BYTES: Final = 1 << 16


def parse_document(body: bytes) -> Any:
    """Return the value of a JSON body.

    Raises:
        ValueError: the body is no JSON, too deep, or longer than MAX_BYTES.
    """
    if len(body) > MAX_BYTES:
        raise ValueError(f"more than {MAX_BYTES} bytes")
    try:
        return json.loads(body)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def error_text(body: bytes) -> str:
    """Return the text of an error's body."""
    try:
        document = parse_document(body)
    except ValueError:
        document = None
    if isinstance(document, dict) and "error" in document:
        return str(document["error"])
    return body[:200].decode("utf-8", "replace").strip()
