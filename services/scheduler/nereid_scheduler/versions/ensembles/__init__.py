"""Ensembles: the graph of steps, one request's run through it, and the tensors between steps."""

# layout: compiled
