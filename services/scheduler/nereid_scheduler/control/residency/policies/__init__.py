"""Choices of models that make way, by memory and popularity."""

# layout: covered, pure
