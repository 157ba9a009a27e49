"""All randomness of a simulation comes from its seed."""

from __future__ import annotations

import os
import random
import sys


class Randomness:
    """What the system and the standard library would give a process of their own."""

    def __init__(self) -> None:
        self._random = random.Random(0)

    def install(self) -> None:
        """Have the process use it. Call before the services are imported."""
        os.urandom = self._random.randbytes

    def start(self, seed: int) -> None:
        """Begin a simulation."""
        self._random.seed(f"system of {seed}")
        random.seed(f"library of {seed}")


def require_fixed_hashes() -> None:
    """Start the process anew, unless sets of strings have the same order in each process."""
    if os.environ.get("PYTHONHASHSEED") != "0":
        environ = {**os.environ, "PYTHONHASHSEED": "0"}
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environ)
