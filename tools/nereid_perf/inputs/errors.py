"""The error that is raised for invalid input of a user."""

from __future__ import annotations


class InputError(Exception):
    """Error in a user's input.

    The text names the flag, or the file and the place in it, and says what was expected.
    """
