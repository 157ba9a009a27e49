"""Shared memory between the processes of one host: segments, leases and mappings.

This package is for memory that Nereid itself owns. The gateway's `client_shm` has the regions that
clients register.
"""
