"""The data plane: the one chain from both fronts to the schedulers."""
