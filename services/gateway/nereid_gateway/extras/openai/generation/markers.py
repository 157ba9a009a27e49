"""Search for texts in a text that arrives in parts."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence


class Found(NamedTuple):
    """Text before a marker, the marker, and the text after it. marker: empty if none is found."""

    text: str
    marker: str = ""
    rest: str = ""


class MarkerSearch:
    """Finds the first of several markers. A part that may begin one is held back."""

    def __init__(self, markers: Sequence[str]) -> None:
        self._pattern = re.compile("|".join(map(re.escape, markers)))
        # A held text is at most as long as the longest marker, less one character.
        self._prefixes = {marker[:length] for marker in markers for length in range(1, len(marker))}
        self._longest = max(map(len, markers)) - 1
        self._held = ""

    def feed(self, part: str) -> Found:
        """Return the text that belongs to no marker, and the marker that ends it."""
        text = self._held + part if self._held else part
        match = self._pattern.search(text)
        if match is not None:
            self._held = ""
            return Found(text[: match.start()], match[0], text[match.end() :])
        for length in range(min(self._longest, len(text)), 0, -1):
            if text[-length:] in self._prefixes:
                self._held = text[-length:]
                return Found(text[:-length])
        self._held = ""
        return Found(text)

    def flush(self) -> str:
        """Return the text that is held back, because no more follows."""
        held, self._held = self._held, ""
        return held
