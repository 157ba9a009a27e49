"""Which queued requests run together, and when: pure state machines.

No clock, socket or metric: the time and the events are arguments.
"""
