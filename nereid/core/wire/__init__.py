"""Requests, responses and notices between the services, and their encodings.

This package does not depend on how the messages are transported, or on models.
"""

# layout: compiled
