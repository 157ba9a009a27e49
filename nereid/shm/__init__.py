"""Shared memory between the processes of one host: segments, leases and mappings.

Only memory that Nereid itself owns. Regions that clients register belong to the gateway's
`client_shm`.
"""
