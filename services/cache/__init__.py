"""The cache: responses by digest, in memory or in Redis. A failure is a miss."""
