"""Logging, metrics and tracing, which all services share.

Metrics are declared here, and written by the services that count them.
"""
