"""Models under test: each with its repository, one request, and what it must return."""
