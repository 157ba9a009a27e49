"""Logging, metrics and tracing, as all services do them.

Metrics are declared here and written by the services that count them.
"""
