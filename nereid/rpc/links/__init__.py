"""Links: long-lived bidirectional streams that carry several items in each frame."""

# layout: compiled
