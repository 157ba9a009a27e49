"""Clients that send encoded requests by callbacks, and check responses without decoding them."""
