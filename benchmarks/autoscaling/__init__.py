"""Rehearsal of autoscaling in virtual time.

The rehearsal consists of a load, the recording rules, Kubernetes' algorithm, pods that take some
time to start, and the scheduler's real core. The metrics page of the core is scraped.
"""
