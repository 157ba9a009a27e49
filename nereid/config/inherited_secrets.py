"""Secrets in an inherited file in memory, because others can see argv and environment."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Final, Self

if TYPE_CHECKING:
    from collections.abc import Mapping

_VARIABLE: Final = "NEREID_SECRETS_FD"
# Nereid's variables, and Triton's for the Redis account, may be secret.
_PREFIXES: Final = ("NEREID_", "TRITONCACHE_")


class SecretsFile:
    """A file in memory that holds a child's secrets until the child has been started."""

    def __init__(self, secrets: Mapping[str, str]) -> None:
        """Write the secrets. Key: an environment variable of the child. Value: its text."""
        self._descriptor = os.memfd_create("nereid-secrets", os.MFD_CLOEXEC)
        os.write(self._descriptor, json.dumps(dict(secrets)).encode())
        os.lseek(self._descriptor, 0, os.SEEK_SET)

    @property
    def descriptors(self) -> tuple[int, ...]:
        """File descriptors for the child to inherit."""
        return (self._descriptor,)

    @property
    def environ(self) -> dict[str, str]:
        """Environment variable that tells the child the number of the file's descriptor."""
        return {_VARIABLE: str(self._descriptor)}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)


def read_environ() -> Mapping[str, str]:
    """Return this process's environment with the inherited secrets; close the secrets' file."""
    descriptor = os.environ.pop(_VARIABLE, None)
    if descriptor is not None:
        with os.fdopen(int(descriptor), encoding="utf-8") as file:
            # /proc still shows the original environment. public_environ() withholds the secrets.
            os.environ.update(json.load(file))
    return os.environ


def public_environ() -> dict[str, str]:
    """Return the environment, without secrets, for processes that run a model's own code."""
    return {name: text for name, text in os.environ.items() if not name.startswith(_PREFIXES)}
