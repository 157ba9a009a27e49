"""Logging, metrics and tracing, as all services do them.

What a service measures is declared in that service; how it is written out is declared here.
"""
