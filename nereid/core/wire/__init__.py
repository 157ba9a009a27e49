"""Requests, responses and notices between the services, and their encodings.

Knows neither streams nor models.
"""

# layout: compiled
