"""Runs a model in a worker: starts it, executes its batches, and keeps track of open requests."""
