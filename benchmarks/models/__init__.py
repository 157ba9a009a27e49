"""Models under test: each has a repository, a request, and the expected response."""
