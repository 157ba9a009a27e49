"""Servers under test: each with its environment and its command line."""
