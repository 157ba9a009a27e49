"""The scheduler service: every model's life, every request's life."""
