"""Loads, updates and unloads of model versions on executors, and their streams."""
