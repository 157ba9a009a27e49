"""The cache: responses and sequences' snapshots; in Redis, schedulers' records as well."""
