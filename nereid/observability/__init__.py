"""Logging, metrics and tracing, which all services share.

The metrics are declared in this package; the services that count them write them.
"""
