"""A client's W3C traceparent to the 26-byte binary form in which services pass it on."""

from __future__ import annotations

import re

_TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?\Z")
_NO_TRACE, _NO_SPAN = "0" * 32, "0" * 16


def binary(traceparent: str | bytes) -> bytes:
    """Version, trace id, span id and flags in 26 bytes; b"" for what is no valid traceparent.

    Later versions begin as version 0 does and are read as it, as the standard asks.
    """
    text = traceparent.decode("ascii", "replace") if isinstance(traceparent, bytes) else traceparent
    match = _TRACEPARENT.match(text.strip())
    if not match:
        return b""
    version, trace, span, flags, rest = match.groups()
    if version == "ff" or trace == _NO_TRACE or span == _NO_SPAN or (version == "00" and rest):
        return b""
    return bytes.fromhex("00" + trace + span + flags)
