"""Instances of models: their loading, serving and unloading, and the schedulers that they serve.

An instance outlives its session with a scheduler: it is kept for the next scheduler that asks for
it.
"""
