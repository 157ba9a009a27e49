"""Limits on connections and bytes: who is accepted, who has to wait, and who is too slow."""

# layout: covered, pure
