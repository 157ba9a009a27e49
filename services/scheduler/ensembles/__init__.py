"""Ensembles: the graph of steps, one run of it, and the tensors between steps."""
