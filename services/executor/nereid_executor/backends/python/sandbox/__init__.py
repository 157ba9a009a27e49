"""Confines worker processes of models: to their own files, without the network, within limits.

`launcher` runs before the worker's interpreter and uses the standard library alone.
"""
