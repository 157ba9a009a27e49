"""The cache service, which stores responses by digest, in memory or in Redis."""
