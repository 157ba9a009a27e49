"""The executor's side of the worker processes that run Python models."""
