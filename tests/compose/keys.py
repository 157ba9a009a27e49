"""The API keys of the Compose mesh's clients, as docs/operators/authentication.md has them."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Final

from tests.compose.models import CACHED, PACKED, PLAIN, SLOW

CLIENT: Final = "nereid_of-a-client"
# May call PLAIN alone, and nothing but inference.
LESSER: Final = "nereid_of-a-lesser-client"
OPERATOR: Final = "nereid_of-an-operator"
_RIGHTS: Final[dict[str, tuple[str, list[str], list[str]]]] = {
    CLIENT: ("client", ["inference", "metadata"], [PLAIN, CACHED, SLOW, PACKED]),
    LESSER: ("lesser", ["inference"], [PLAIN]),
    OPERATOR: ("operator", ["all"], []),
}


def headers(key: str) -> dict[str, str]:
    """Return the header, or the metadata, that shows a key."""
    return {"authorization": f"Bearer {key}"} if key else {}


class Keys:
    """The folder that the gateway mounts, with the file of --auth-config."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.folder = folder
        self.write({key: [key] for key in _RIGHTS})

    def write(self, accepted: dict[str, list[str]]) -> None:
        """Write which keys are accepted in place of each; by renaming, so it is never half."""
        lines = ["[anonymous]", 'rights = ["health"]']
        for key, replacements in accepted.items():
            name, rights, models = _RIGHTS[key]
            digests = [hashlib.sha256(each.encode()).hexdigest() for each in replacements]
            lines += ["[[keys]]", f'name = "{name}"', f"sha256 = {json.dumps(digests)}"]
            lines += [f"rights = {json.dumps(rights)}"]
            lines += [f"models = {json.dumps(models)}"] * bool(models)
        new = self.folder / "auth.toml.new"
        new.write_text("\n".join(lines) + "\n")
        new.rename(self.folder / "auth.toml")
