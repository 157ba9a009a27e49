"""Logging, metrics and tracing, which all services share."""
