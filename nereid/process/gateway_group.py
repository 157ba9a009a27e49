"""What the gateways of one `nereid serve --gateways N` share beside their ports: a directory.

`nereid serve` passes it on in an environment variable; a gateway without it serves alone. Knows no
service.
"""

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
    """One gateway's place in its group; its number is below the group's size."""

    number: int
    size: int
    # Of this user alone, and there for as long as the group is.
    directory: Path


def group_environ(number: int, size: int, directory: str) -> dict[str, str]:
    """The variable by which a gateway finds its group."""
    return {_VARIABLE: json.dumps({"number": number, "size": size, "directory": directory})}


def read_group(environ: MutableMapping[str, str]) -> GatewayGroup | None:
    """The group of this process; call once. None: it has none."""
    text = environ.pop(_VARIABLE, "")
    if not text:
        return None
    place = json.loads(text)
    return GatewayGroup(place["number"], place["size"], Path(place["directory"]))
