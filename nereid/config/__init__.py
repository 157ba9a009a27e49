"""Declare settings, and read them from flags, environment variables and TLS files.

The settings of each service are in the service's `settings.py`. No other module reads argv or the
environment.
"""
