"""Parses Server-Timing (W3C), with bounded work for any text."""

from __future__ import annotations

import re
from typing import Final

# This header asks Nereid for Server-Timing. Other servers may send Server-Timing anyway.
REQUEST_HEADER: Final = "nereid-timing", "1"
HEADER: Final = "server-timing"
# A stream's responses have no separate trailers, so this parameter has the Server-Timing.
STREAM_PARAMETER: Final = "server_timing"
# This entry is the server's whole time; the other entries are parts of it.
TOTAL: Final = "total"

MAX_ENTRIES: Final = 32
_MAX_CHARACTERS: Final = 4096
_MAX_MS: Final = 3_600_000
_NS_PER_MS: Final = 1_000_000
_QUOTED: Final = re.compile(r'"(?:[^"\\]|\\.)*+(?:"|$)')
_TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,64}")
_NUMBER: Final = re.compile(r"[0-9]{1,9}(?:\.[0-9]{0,9})?")


def parse_server_timing(text: str) -> dict[str, int]:
    """Return the durations of entries in ns by name; entries with the same name are added up."""
    durations: dict[str, int] = {}
    # Quoted descriptions may contain separators.
    plain = _QUOTED.sub(_unquoted, text[:_MAX_CHARACTERS])
    for entry in plain.split(",")[:MAX_ENTRIES]:
        name, *parameters = (part.strip(" \t") for part in entry.split(";"))
        duration = _duration_ns(parameters)
        if duration is not None and _TOKEN.fullmatch(name):
            durations[name] = durations.get(name, 0) + duration
    return durations


def _duration_ns(parameters: list[str]) -> int | None:
    """Return the entry's first duration, as the standard says, or `None` if it is not valid."""
    for parameter in parameters:
        name, equals, value = parameter.partition("=")
        if equals and name.rstrip(" \t").lower() == "dur":
            matched = _NUMBER.fullmatch(value.strip(" \t"))
            if matched is None or float(matched[0]) > _MAX_MS:
                return None
            return round(float(matched[0]) * _NS_PER_MS)
    return None


def _unquoted(found: re.Match[str]) -> str:
    """Return a quoted number without quotes, and "" for any other quoted text."""
    text = found[0].strip('"')
    return text if _NUMBER.fullmatch(text) else ""
