"""Converts W3C traceparent and tracestate headers to the binary form that services use."""

from __future__ import annotations

import re
from typing import Final

from nereid.core.wire.trace_context import MAX_TRACE_STATE

_TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?\Z")
_NO_TRACE, _NO_SPAN = "0" * 32, "0" * 16
_ENTRY: Final = re.compile(
    r"(?:[a-z][a-z0-9_\-*/]{0,255}|[a-z0-9][a-z0-9_\-*/]{0,240}@[a-z][a-z0-9_\-*/]{0,13})"
    r"=[\x20-\x2b\x2d-\x3c\x3e-\x7e]{0,255}[\x21-\x2b\x2d-\x3c\x3e-\x7e]\Z"
)
# W3C's limits: number of entries, characters to pass on, and length of an entry in a longer state.
_MAX_ENTRIES: Final = 32
_LONG_ENTRY: Final = 128


def binary(traceparent: str | bytes, tracestate: str | bytes | None = None) -> bytes:
    """Return version, trace id, span id and flags in 26 bytes, followed by the tracestate.

    The result is empty if the traceparent is invalid. Later versions are read like version 0, as
    the standard asks. An invalid tracestate is left out.
    """
    match = _TRACEPARENT.match(_text(traceparent).strip())
    if not match:
        return b""
    version, trace, span, flags, rest = match.groups()
    if version == "ff" or trace == _NO_TRACE or span == _NO_SPAN or (version == "00" and rest):
        return b""
    context = bytes.fromhex("00" + trace + span + flags)
    return context + _checked_state(_text(tracestate)) if tracestate else context


def _text(header: str | bytes) -> str:
    return header.decode("ascii", "replace") if isinstance(header, bytes) else header


def _checked_state(text: str) -> bytes:
    """Return the entries to pass on: none if any entry is invalid."""
    entries = [entry for part in text.split(",", _MAX_ENTRIES + 1) if (entry := part.strip(" \t"))]
    if len(entries) > _MAX_ENTRIES or not all(map(_ENTRY.match, entries)):
        return b""
    if len(",".join(entries)) > MAX_TRACE_STATE:
        entries = [entry for entry in entries if len(entry) <= _LONG_ENTRY]
    while len(state := ",".join(entries)) > MAX_TRACE_STATE:
        entries.pop()
    return state.encode("ascii")
