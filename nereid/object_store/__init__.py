"""Model repositories in object stores (s3://, gs://, as://), and their files on this host.

The scheduler lists them; executors fetch the versions that they load into a cache that the host's
processes share. Knows no service and no model configuration. All calls block: make them in threads.
"""
