"""Writes the results of `nereid perf` as text, CSV, JSON, a page or a picture."""
