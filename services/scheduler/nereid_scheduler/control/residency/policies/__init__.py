"""Decides which models make way for others, by memory and popularity."""

# layout: covered, pure
