"""The error of everything that a user gives as input."""

from __future__ import annotations


class InputError(Exception):
    """The text names the flag, or the file and the place in it, and says what was expected."""
