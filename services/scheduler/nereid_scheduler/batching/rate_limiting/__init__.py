"""Bounds on what executes at once, by resources that instances need (--rate-limit)."""
