"""Parser of JSON documents that others, even untrusted ones, send to tools or have recorded."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from nereid.core.files.regular_files import read_up_to

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

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


def read_document(path: Path, limit: int = MAX_BYTES) -> str:
    """Return a file's text, without a byte order mark.

    Raises OSError, or ValueError for more than `limit` bytes.
    """
    with path.open("rb") as file:
        body = read_up_to(file, limit)
    if len(body) > limit:
        raise ValueError(f"more than {limit} bytes")
    return body.decode("utf-8-sig")


def read_document_lines(path: Path) -> Iterator[bytes]:
    """Yield a file's lines. Raises OSError, or ValueError for a line that is no document."""
    with path.open("rb") as file:
        while line := file.readline(MAX_BYTES + 1):
            if len(line) > MAX_BYTES:
                raise ValueError(f"a line of more than {MAX_BYTES} bytes")
            yield line


def error_text(body: bytes) -> str:
    """Return the error message that a response body contains."""
    try:
        document = parse_document(body)
    except ValueError:
        document = None
    if isinstance(document, dict) and "error" in document:
        return str(document["error"])
    return body[:200].decode("utf-8", "replace").strip()
