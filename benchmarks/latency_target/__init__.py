"""Rehearsal in virtual time of batching that keeps a latency target.

The load changes, the model becomes slower, and the scheduler's core is the real one. The result is
compared with every fixed setting.
"""
