"""Schedules of when requests are sent, and a check that the client kept to them."""

# layout: pure
