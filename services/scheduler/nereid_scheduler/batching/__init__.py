"""Batchers, which decide which queued requests run together, and when.

A batcher is a pure state machine: events and the present time are its arguments, and batches are
its results. No module of this package reads a clock, opens a socket or updates a metric.
"""

# layout: compiled, covered, pure
