"""Rehearsal of autoscaling in virtual time.

It has a load, the recording rules, Kubernetes' algorithm, pods that take a while to start, and the
scheduler's real core, whose metrics page is scraped.
"""
