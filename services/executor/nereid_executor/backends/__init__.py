"""Backends of the executor itself, and the registry of all backends."""
