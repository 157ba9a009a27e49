"""Nouns of the gateway: a request's head, tensors, timings, and who sends it."""
