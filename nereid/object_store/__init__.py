"""Model repositories in object stores, and their files on this host. All calls block."""
