"""Shared memory between the processes of one host: segments, leases and mappings.

The memory belongs to Nereid. Regions of clients are in the gateway's `client_shm`.
"""
