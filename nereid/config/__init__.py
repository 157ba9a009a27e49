"""Declare settings, and read them from flags, environment variables and TLS files.

No other module reads argv or the environment.
"""
