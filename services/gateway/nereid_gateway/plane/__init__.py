<<<<<<< HEAD
"""The data plane: the one chain from both fronts to the schedulers."""
=======
"""The data plane: the chain of steps that takes requests from both fronts to the schedulers."""

# layout: compiled
>>>>>>> r-e
