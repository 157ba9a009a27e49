"""Sessions with schedulers: registration, commands, reports, metrics."""
