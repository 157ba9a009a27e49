"""Nouns of the scheduler: requests, instances, measurements, models. Decide little, do no I/O."""
