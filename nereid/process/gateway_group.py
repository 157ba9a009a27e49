"""Group of the gateways that one `nereid serve --gateways N` starts."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import MutableMapping

_VARIABLE: Final = "NEREID_GATEWAY_GROUP"


@dataclass(frozen=True)
class GatewayGroup:
    """Place of one gateway in its group; numbers begin at 0."""

    number: int
    size: int
    # Only this user may enter the directory, which exists as long as the group.
    directory: Path


def group_environ(number: int, size: int, directory: str) -> dict[str, str]:
    """Return the environment variable that describes the group to a gateway."""
    return {_VARIABLE: json.dumps({"number": number, "size": size, "directory": directory})}


def read_group(environ: MutableMapping[str, str]) -> GatewayGroup | None:
    """Return the group of this process, or None if it serves alone; call this once."""
    text = environ.pop(_VARIABLE, "")
    if not text:
        return None
    place = json.loads(text)
    return GatewayGroup(place["number"], place["size"], Path(place["directory"]))
