"""Limits which instances execute at once, by the resources that they need (--rate-limit)."""

# layout: covered, pure
