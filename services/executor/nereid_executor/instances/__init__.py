"""Instances of models: what loads, serves and unloads them, and which scheduler's they are.

An instance outlives its session with a scheduler: it is kept for the next one that asks for it.
"""
