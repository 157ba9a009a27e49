"""Ports that `nereid serve` has bound and passes on to the processes that serve them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from nereid.rpc.net.shared_ports import InheritedPorts

if TYPE_CHECKING:
    from collections.abc import MutableMapping

    from nereid.rpc.net.shared_ports import SharedPorts

_VARIABLE: Final = "NEREID_INHERITED_PORTS"


def ports_environ(ports: SharedPorts, member: int) -> dict[str, str]:
    """Return the variable for a member, which must also inherit ports.descriptors."""
    return {_VARIABLE: json.dumps(ports.description(member))}


def read_ports(environ: MutableMapping[str, str]) -> InheritedPorts | None:
    """Return the ports that this process inherits, or None; call this once."""
    text = environ.pop(_VARIABLE, "")
    return InheritedPorts(json.loads(text)) if text else None
