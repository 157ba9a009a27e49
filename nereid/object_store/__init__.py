"""Model repositories in object stores (s3://, gs://, as://), and their files on this host.

The package depends on no service and no model configuration. All calls block.
"""
