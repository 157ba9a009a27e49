"""Clients and scans as sources of what is desired."""
