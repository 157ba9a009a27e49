"""Bounds on connections and bytes: who is accepted, who waits, and who is too slow."""

# layout: covered, pure
