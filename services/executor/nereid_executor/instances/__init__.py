"""Instances of models: how they are loaded, serve, and are unloaded, and for which schedulers.

An instance outlives its session with a scheduler. It is kept for the next scheduler that asks for
it.
"""
