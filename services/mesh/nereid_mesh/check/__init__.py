"""`nereid check`: shows how a scheduler and an executor would serve a model repository."""
