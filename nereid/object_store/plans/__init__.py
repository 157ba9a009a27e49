"""Decisions about object stores: URLs, listings, credentials, and what the cache keeps."""

# layout: covered, pure
