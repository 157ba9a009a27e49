"""Ensembles: the graph of steps, the run of a request through it, and the tensors between steps."""

# layout: compiled
