"""Routing table: which scheduler has which model, according to the schedulers' announcements."""

# layout: covered, pure
