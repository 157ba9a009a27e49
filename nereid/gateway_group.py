"""What the gateways of one `nereid serve --gateways N` share: ports, and a directory.

`nereid serve` passes it on in an environment variable; a gateway without it serves alone. Knows no
service.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from nereid.rpc.net.shared_ports import InheritedPorts

if TYPE_CHECKING:
    from collections.abc import MutableMapping

    from nereid.rpc.net.shared_ports import SharedPorts

_VARIABLE: Final = "NEREID_GATEWAY_GROUP"


@dataclass(frozen=True)
class GatewayGroup:
    """One gateway's place in its group; its number is below the group's size."""

    number: int
    size: int
    # Of this user alone, and there for as long as the group is.
    directory: Path
    ports: InheritedPorts


def group_environ(number: int, size: int, directory: str, ports: SharedPorts) -> dict[str, str]:
    """The variable by which a gateway finds its group; it inherits ports.descriptors."""
    place = {"number": number, "size": size, "directory": directory}
    return {_VARIABLE: json.dumps(place | {"ports": ports.description(number)})}


def read_group(environ: MutableMapping[str, str]) -> GatewayGroup | None:
    """The group of this process, whose ports it inherits; call once. None: it has none."""
    text = environ.pop(_VARIABLE, "")
    if not text:
        return None
    place = json.loads(text)
    ports = InheritedPorts(place["ports"])
    return GatewayGroup(place["number"], place["size"], Path(place["directory"]), ports)
