"""The deployable services; each is a package that knows nothing of the others."""
