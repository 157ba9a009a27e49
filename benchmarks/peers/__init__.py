"""Servers under test: each has an environment and a command line."""
