"""An attack: a name, what the client does, and its permitted outcomes."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Target:
    """A mesh as its clients see it, and the address that they come from."""

    http: str
    grpc: str
    metrics: str
    source: str = "127.0.0.2"
    # Managed ports.
    sagemaker: str = ""
    vertex: str = ""


# Returns what became of the connection or the call, as raw_clients has it.
Client = Callable[[Target], str]


class Prepared:
    """A client whose bytes take long to make: they are made before the attack, and not kept."""

    def __init__(self, make: Callable[[], bytes], send: Callable[[Target, bytes], str]) -> None:
        self._make, self._send = make, send
        self._made: bytes | None = None

    def prepare(self) -> None:
        self._made = self._make()

    def forget(self) -> None:
        self._made = None

    def __call__(self, target: Target) -> str:
        return self._send(target, self._make() if self._made is None else self._made)


# An error of any kind, or the end of the connection.
REFUSED = re.compile(r"status [45].*|grpc [1-9]\d*|goaway \d+|reset \d+|closed")
SERVED = re.compile(r"status 200|grpc 0")
ENDED = re.compile(f"{REFUSED.pattern}|{SERVED.pattern}")
# Also that the server goes on: for clients who give up by themselves.
ANY = re.compile(r".*")


@dataclass(frozen=True)
class Attack:
    """One hostile client."""

    name: str
    client: Client
    expected: re.Pattern[str] = REFUSED
    # How long it may take until it is refused, or has done what it came for.
    limit_s: float = 60
    nightly: bool = False
    # Memory that it may cost beyond the budget, such as a large response.
    more_mib: int = 0
