"""Spans and timestamps of traced requests."""
