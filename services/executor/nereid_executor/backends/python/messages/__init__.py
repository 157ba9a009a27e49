"""Conversion of messages between the mesh and the worker of a Python model."""

# layout: compiled
