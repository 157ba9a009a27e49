"""Parser of Server-Timing (W3C), by which a server says where a request's time went. Pure.

Whatever text comes, parsing takes bounded work, and a part that is no entry is skipped.
"""

from __future__ import annotations

import re
from typing import Final

# Header that asks Nereid for it; other servers send it, or do not, and ignore this.
REQUEST_HEADER: Final = "nereid-timing", "1"
HEADER: Final = "server-timing"
# Parameter in the responses of a stream, which have no trailers of their own.
STREAM_PARAMETER: Final = "server_timing"
# Entry for all of the server's time, of which the others are parts.
TOTAL: Final = "total"

MAX_ENTRIES: Final = 32
_MAX_CHARACTERS: Final = 4096
_MAX_MS: Final = 3_600_000
_NS_PER_MS: Final = 1_000_000
_QUOTED: Final = re.compile(r'"(?:[^"\\]|\\.)*+(?:"|$)')
_TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,64}")
_NUMBER: Final = re.compile(r"[0-9]{1,9}(?:\.[0-9]{0,9})?")


def parse_server_timing(text: str) -> dict[str, int]:
    """Return the entries that have a duration, in ns, with entries of one name added up."""
    durations: dict[str, int] = {}
    # Descriptions may have separators in them.
    plain = _QUOTED.sub(_unquoted, text[:_MAX_CHARACTERS])
    for entry in plain.split(",")[:MAX_ENTRIES]:
        name, *parameters = (part.strip(" \t") for part in entry.split(";"))
        duration = _duration_ns(parameters)
        if duration is not None and _TOKEN.fullmatch(name):
            durations[name] = durations.get(name, 0) + duration
    return durations


def _duration_ns(parameters: list[str]) -> int | None:
    """Return the first duration, as the standard says, or `None` if no valid one is there."""
    for parameter in parameters:
        name, equals, value = parameter.partition("=")
        if equals and name.rstrip(" \t").lower() == "dur":
            matched = _NUMBER.fullmatch(value.strip(" \t"))
            if matched is None or float(matched[0]) > _MAX_MS:
                return None
            return round(float(matched[0]) * _NS_PER_MS)
    return None


def _unquoted(found: re.Match[str]) -> str:
    """Return a quoted number; nothing else in quotes is of use."""
    text = found[0].strip('"')
    return text if _NUMBER.fullmatch(text) else ""
