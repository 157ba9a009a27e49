"""Environments for the packages that Python models name, kept by content for one host."""
