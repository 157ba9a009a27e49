"""Requests, responses and notices between the services, and their encodings."""

# layout: compiled
