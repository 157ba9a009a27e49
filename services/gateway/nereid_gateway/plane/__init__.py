"""The data plane: the chain of steps that takes requests from both fronts to the schedulers."""
