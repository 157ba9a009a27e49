"""Links: long-lived bidirectional streams that carry many items to a frame."""

# layout: compiled
