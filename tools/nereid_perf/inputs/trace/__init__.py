"""Traces of requests: when each arrived, for which model, with inputs of which sizes.

They are read one request at a time, and within limits, whatever a file holds.
"""
