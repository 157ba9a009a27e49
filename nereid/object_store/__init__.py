"""Model repositories in object stores (s3://, gs://, as://), and their files on this host.

The scheduler lists the repositories. Executors download the versions that they load into a cache,
which all processes of the host share. This package depends on no service and no model
configuration. All calls block, so call them in threads.
"""
