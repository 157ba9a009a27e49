"""The cache: responses by digest, in memory or in Redis."""
