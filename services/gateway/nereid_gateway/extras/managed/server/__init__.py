<<<<<<< HEAD
"""The HTTP server of the managed endpoints' ports."""
=======
"""HTTP server of the managed ports."""

# layout: compiled
>>>>>>> r-e
