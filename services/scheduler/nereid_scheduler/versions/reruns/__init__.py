"""Requests that run again: first runs, recalls, and requests that a gateway has sent before."""
