"""Bodies of multipart/form-data, as calls with files have them."""

from __future__ import annotations

from email.errors import MessageError
from email.message import Message
from email.parser import BytesHeaderParser
from typing import Final

from nereid.core.errors import InvalidArgument

_MAX_PARTS: Final = 32
# The time that email takes for a header grows with the square of its size.
_MAX_HEAD_BYTES: Final = 2 << 10


def parse_form(content_type: bytes, body: bytes | memoryview) -> dict[str, bytes]:
    """Return the contents of a form by field name. Raises InvalidArgument."""
    boundary = _boundary_of(content_type)
    # The first boundary may stand at the beginning.
    first, *parts = b"".join((b"\r\n", body)).split(b"\r\n--" + boundary, _MAX_PARTS + 1)
    if first or not parts or not parts[-1].startswith(b"--"):
        raise InvalidArgument(
            f"The form is not complete, or has more than {_MAX_PARTS} parts, or text before them."
        )
    fields = {}
    for part in parts[:-1]:
        head, separator, content = part.removeprefix(b"\r\n").partition(b"\r\n\r\n")
        name = _name_of(head) if separator and len(head) <= _MAX_HEAD_BYTES else ""
        if not name or name in fields:
            raise InvalidArgument("Each part of a form needs a name of its own.")
        fields[name] = content
    return fields


def _boundary_of(content_type: bytes) -> bytes:
    message = Message()
    message["content-type"] = content_type[:_MAX_HEAD_BYTES].decode("latin-1")
    boundary = message.get_param("boundary")
    if message.get_content_type() != "multipart/form-data" or not isinstance(boundary, str):
        raise InvalidArgument("The API expects multipart/form-data with a boundary.")
    return boundary.encode("latin-1", "replace")


def _name_of(head: bytes) -> str:
    try:
        name = BytesHeaderParser().parsebytes(head).get_param("name", header="content-disposition")
    except (MessageError, ValueError):
        return ""
    return name if isinstance(name, str) else ""
