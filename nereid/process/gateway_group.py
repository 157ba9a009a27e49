"""Directory that the gateways of one `nereid serve --gateways N` share, beside their ports.

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
    """Place of one gateway in its group; its number is below the group's size."""

    number: int
    size: int
    # Directory of this user alone, which exists for as long as the group does.
    directory: Path


def group_environ(number: int, size: int, directory: str) -> dict[str, str]:
    """Return the environment variable by which a gateway finds its group."""
    return {_VARIABLE: json.dumps({"number": number, "size": size, "directory": directory})}


def read_group(environ: MutableMapping[str, str]) -> GatewayGroup | None:
    """Return the group of this process, or None; call once."""
    text = environ.pop(_VARIABLE, "")
    if not text:
        return None
    place = json.loads(text)
    return GatewayGroup(place["number"], place["size"], Path(place["directory"]))
