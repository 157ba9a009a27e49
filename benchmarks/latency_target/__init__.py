"""Rehearsal in virtual time of batching that holds a target.

It has a load that changes, a model that becomes slower, the scheduler's real core, and beside it
every fixed setting.
"""
