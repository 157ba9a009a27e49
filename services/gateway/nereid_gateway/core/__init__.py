<<<<<<< HEAD
"""Nouns of the gateway: a request's head, tensors, timings, and who sends it."""
=======
"""Value types of the gateway: request heads, tensors, timings, and the identity of clients."""

# layout: compiled
>>>>>>> r-e
