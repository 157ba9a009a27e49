"""Instances of models. An instance outlives its session and is kept for the next scheduler."""
