"""How a process of `nereid serve` gets its secrets: from a file descriptor that it inherits.

argv shows a secret to everybody on the machine, and the environment of a process to all processes
of its user, Python models included. The file exists in memory only, and is closed once it is read.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Final, Self

if TYPE_CHECKING:
    from collections.abc import Mapping

_VARIABLE: Final = "NEREID_SECRETS_FD"
# Nereid's variables are for its services, secret ones among them; Redis' account has Triton's.
_PREFIXES: Final = ("NEREID_", "TRITONCACHE_")


class SecretsFile:
    """A child's secrets, until it has been started."""

    def __init__(self, secrets: Mapping[str, str]) -> None:
        """secrets: variables of the child's settings."""
        self._descriptor = os.memfd_create("nereid-secrets", os.MFD_CLOEXEC)
        os.write(self._descriptor, json.dumps(dict(secrets)).encode())
        os.lseek(self._descriptor, 0, os.SEEK_SET)

    @property
    def descriptors(self) -> tuple[int, ...]:
        """What the child inherits."""
        return (self._descriptor,)

    @property
    def environ(self) -> dict[str, str]:
        """What the child finds it by."""
        return {_VARIABLE: str(self._descriptor)}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)


def read_environ() -> Mapping[str, str]:
    """The environment of this process with the secrets that it has inherited."""
    descriptor = os.environ.pop(_VARIABLE, None)
    if descriptor is not None:
        with os.fdopen(int(descriptor), encoding="utf-8") as file:
            # Not shown by /proc, and not passed on to workers (see public_environ).
            os.environ.update(json.load(file))
    return os.environ


def public_environ() -> dict[str, str]:
    """The environment for processes that run a model's own code: without Nereid's variables."""
    return {name: text for name, text in os.environ.items() if not name.startswith(_PREFIXES)}
