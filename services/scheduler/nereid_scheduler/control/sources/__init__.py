"""Clients and scans of repositories, which are the sources of what is desired."""
