"""The cache: answers by digest, in memory or in Redis. It may fail at any time."""
