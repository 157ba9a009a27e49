"""The error that is raised for invalid input of a user."""

from __future__ import annotations


class InputError(Exception):
    """Error in a user's input; the text names the flag or the place, and what was expected."""
